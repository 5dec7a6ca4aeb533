"""Reads a safetensors blob with the standard library, strictly: what any consumer of our traces could write.

Refuses what the format forbids: a header that is not JSON or not at its stated length, unknown dtypes, sizes that do
not fit dtype and shape, holes, overlaps, bytes left over.
"""
import json
import math
import struct

SIZE = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F16": 2, "BF16": 2, "U16": 2, "I16": 2, "F32": 4, "I32": 4, "U32": 4, "F64": 8, "I64": 8, "U64": 8}
CODE = {"BOOL": "?", "U8": "B", "I8": "b", "F16": "e", "U16": "H", "BF16": "H", "I16": "h", "F32": "f", "I32": "i", "U32": "I", "F64": "d", "I64": "q", "U64": "Q"}


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, tuple(shape), data

    def values(self):
        """A flat list; BF16 as floats."""
        n = len(self.data) // SIZE[self.dtype]
        v = struct.unpack(f"<{n}{CODE[self.dtype]}", self.data)
        if self.dtype == "BF16":
            return list(struct.unpack(f"<{n}f", struct.pack(f"<{n}I", *(x << 16 for x in v))))
        return list(v)


def read(blob, align=1):
    """(metadata dict, {name: Tensor}), or ValueError. align: of the data's start (trace records: 64)."""
    if len(blob) < 8:
        raise ValueError("shorter than its length field")
    n = struct.unpack("<Q", blob[:8])[0]
    if n > len(blob) - 8:
        raise ValueError("the header is longer than the blob")
    header = json.loads(blob[8:8 + n])
    if (8 + n) % align:
        raise ValueError(f"the data do not start at a multiple of {align}")
    data = blob[8 + n:]
    meta = header.pop("__metadata__", {})
    if not all(isinstance(v, str) for v in meta.values()):
        raise ValueError("a metadata value is not a string")
    tensors, at = {}, 0
    for name, t in sorted(header.items(), key=lambda x: x[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        if begin != at or end > len(data) or end - begin != math.prod(t["shape"]) * SIZE[t["dtype"]]:
            raise ValueError(f"{name}: offsets {begin}..{end} do not follow {at} or do not fit {t['dtype']} {t['shape']}")
        tensors[name] = Tensor(t["dtype"], t["shape"], data[begin:end])
        at = end
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes left over")
    return meta, tensors

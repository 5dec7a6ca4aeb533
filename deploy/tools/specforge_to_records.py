#!/usr/bin/env python3
"""SpecForge's prepared hidden states as trace records, for `redraft-learn train --from_files 'OUT/*'`.

    specforge_to_records.py --frozen STORE/frozen/FP/frozen.safetensors --out OUT FILE.ckpt[.gz]...      (needs torch)

Each file holds one sequence: input_ids [n], loss_mask [n], hidden_state [1,n,H] (after the final norm), aux_hidden_state
[1,n,3H]. Rows with loss_mask 1 become generated rows: their top-K is the frozen head's on the stored state. The others keep the
state, from which the learner makes their teacher. The last token has a state but no successor, so it is the record's next_token
and its row is left out. The target's fingerprint is taken from the frozen file: that it is the target which made the states, nobody can check.
"""
import argparse
import gzip
import hashlib
import io
import json
import os
import struct
import sys

LIMIT = 900_000
SIZE = {"U32": 4, "F16": 2, "BF16": 2, "U8": 1}


def safetensors(tensors, meta):
    tensors = sorted((t for t in tensors if len(t[3])), key=lambda t: -SIZE[t[1]])
    index, at = {"__metadata__": meta}, 0
    for name, dtype, shape, raw in tensors:
        index[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(index, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in tensors)


def read_frozen(path, torch):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        index = json.loads(f.read(n))
        name = "lm_head.weight" if "lm_head.weight" in index else "embed_tokens.weight"
        begin, end = index[name]["data_offsets"]
        f.seek(8 + n + begin)
        raw = bytearray(f.read(end - begin))
    return index["__metadata__"]["target_fp"], torch.frombuffer(raw, dtype=torch.bfloat16).reshape(index[name]["shape"])


def raw(t, torch):
    t = t.contiguous()
    return t.view(torch.uint8).numpy().tobytes() if t.numel() else b""


def top(z, head, k, torch):
    p = torch.log_softmax(z.float() @ head.float().T, -1)
    value, ids = torch.sort(p, dim=-1, descending=True, stable=True)
    return ids[:, :k].to(torch.int32), value[:, :k].clamp(max=0).half()


def records(path, args, fp, head, torch):
    opened = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
    with opened as f:
        d = torch.load(io.BytesIO(f.read()), map_location="cpu", weights_only=True)
    ids, mask = d["input_ids"].reshape(-1), d["loss_mask"].reshape(-1) != 0
    z, f = d["hidden_state"].reshape(len(ids), -1).bfloat16(), d["aux_hidden_state"].reshape(len(ids), -1).bfloat16()
    H = head.shape[1]
    if z.shape[1] != H or f.shape[1] != 3 * H:
        sys.exit(f"{path}: hidden_state is {z.shape[1]} wide and aux_hidden_state {f.shape[1]}; this target has {H} and {3 * H}")
    name = hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:16]
    rows = max(1, (LIMIT - 8192) // (8 * H + 6 * args.topk + 9))
    n = len(ids) - 1
    for run, at in enumerate(range(0, n, rows)):
        s = slice(at, min(at + rows, n))
        g = mask[s]
        tk, lp = top(z[s][g], head, args.topk, torch)
        T, G = s.stop - s.start, int(g.sum())
        meta = {"schema": "1", "target_fp": fp, "temperature": "0", "request": name, "conversation": name, "parent": "", "domain": args.domain, "tenant": "",
                "producer": "specforge", "seq": str(args.seq), "run": str(run), "last": "1" if s.stop == n else "0"}
        args.seq += 1
        yield f"{name}-{run:05d}.safetensors", safetensors([
            ("token_ids", "U32", [T], raw(ids[s].to(torch.int32), torch)), ("positions", "U32", [T], raw(torch.arange(s.start, s.stop, dtype=torch.int32), torch)),
            ("next_token", "U32", [1], raw(ids[s.stop : s.stop + 1].to(torch.int32), torch)), ("loss_mask", "U8", [T], raw(g.to(torch.uint8), torch)),
            ("features", "BF16", [T, 3, H], raw(f[s], torch)), ("topk_ids", "U32", [G, args.topk], raw(tk, torch)), ("topk_logprob", "F16", [G, args.topk], raw(lp, torch)),
            ("last_hidden", "BF16", [T - G, H], raw(z[s][~g], torch))], meta)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="+")
    p.add_argument("--frozen", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--topk", type=int, default=64)
    p.add_argument("--domain", default="")
    args = p.parse_args()
    args.seq = 0
    import torch
    fp, head = read_frozen(args.frozen, torch)
    os.makedirs(args.out, exist_ok=True)
    n = 0
    for path in args.files:
        for name, blob in records(path, args, fp, head, torch):
            with open(os.path.join(args.out, name), "wb") as f:
                f.write(blob)
            n += 1
    print(f"{n} records")


if __name__ == "__main__":
    main()

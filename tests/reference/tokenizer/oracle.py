"""A Hugging Face `tokenizers` object built from a GGUF's vocabulary and merges: the
oracle of serve/tokenizer.c. No model hub is needed."""
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def gguf_metadata(path):
    with open(path, "rb") as f:
        _magic, _version, _tensors, n = struct.unpack("<IIQQ", f.read(24))

        def text():
            (size,) = struct.unpack("<Q", f.read(8))
            return f.read(size).decode()

        def value(kind):
            if kind == 8:
                return text()
            if kind == 9:
                item, count = struct.unpack("<IQ", f.read(12))
                return [value(item) for _ in range(count)]
            code = "<" + SCALARS[kind]
            return struct.unpack(code, f.read(struct.calcsize(code)))[0]

        out = {}
        for _ in range(n):
            key = text()
            (kind,) = struct.unpack("<I", f.read(4))
            out[key] = value(kind)
        return out


def build(meta, special):
    """special: control tokens in the text are recognised, as in a rendered template."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    t = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(tokens)}, merges=merges))
    assert meta["tokenizer.ggml.pre"] == "smollm"
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    if special:
        kinds = meta["tokenizer.ggml.token_type"]
        t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x, k in zip(tokens, kinds) if k == 3])
    return t


def ids(tokenizer, texts):
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]

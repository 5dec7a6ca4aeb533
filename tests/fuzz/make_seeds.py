#!/usr/bin/env python3
"""Write small valid inputs for every harness into a folder: make_seeds.py DIR.

The committed corpora grew from these; run it again after a format changed.
"""
import json
import os
import struct
import sys


def safetensors(tensors, meta=None, align=64):
    """tensors: (name, dtype, shape, bytes) in file order."""
    index, at = ({"__metadata__": meta} if meta else {}), 0
    for name, dtype, shape, raw in tensors:
        index[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(index, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % align)
    return struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in tensors)


def record(rounds, teacher, kind):
    T, G, H, K = 4, 2, 2, 2
    meta = {"schema": "1", "target_fp": "ab", "temperature": "0", "request": "r", "run": "0", "last": "1", "conversation": "c", "parent": "",
            "domain": "code", "tenant": "", "producer": "p", "seq": "7"}
    four = [("token_ids", "U32", [T], struct.pack("<4I", 1, 2, 3, 4)), ("positions", "U32", [T], struct.pack("<4I", 5, 6, 7, 8)),
            ("next_token", "U32", [1], struct.pack("<I", 9))]
    two, one = [], [("loss_mask", "U8", [T], b"\0\0\1\1")]
    n = T * 3 * H
    if kind == "BF16":
        two.append(("features", "BF16", [T, 3, H], struct.pack("<H", 0x3F80) * n))
    elif kind in ("zstd", "zstd_rle"):  # one frame: one block, stored or one byte repeated
        block = b"\x3f" * n if kind == "zstd" else b"\x3f"
        frame = b"\x28\xb5\x2f\xfd\x20" + bytes([n]) + struct.pack("<I", 1 | (0 if kind == "zstd" else 2) | n << 3)[:3] + block
        one += [("features_lo", "U8", [T, 3, H], b"\x80" * n), ("features_hi_zstd", "U8", [len(frame)], frame)]
    elif kind == "planes":
        one += [("features_hi", "U8", [T, 3, H], b"\x3f" * n), ("features_lo", "U8", [T, 3, H], b"\x80" * n)]
    else:
        four.append(("features_scale", "F32", [T, 3], struct.pack("<f", 0.5) * (T * 3)))
        one.append(("features", kind, [T, 3, H], b"\x31" * n))
    if teacher:
        four.append(("topk_ids", "U32", [G, K], struct.pack("<4I", 1, 2, 3, 4)))
        two += [("topk_logprob", "F16", [G, K], struct.pack("<4e", -0.1, -2, -0.5, -1)),
                ("last_hidden", "BF16", [T - G, H], struct.pack("<H", 0xBF80) * ((T - G) * H))]
    if rounds:
        four += [("round_start", "U32", [2], struct.pack("<2I", 1, 3)), ("round_version", "U32", [2], struct.pack("<2I", 1, 2)),
                 ("draft_ids", "U32", [2, 2], struct.pack("<4I", 3, 4, 5, 0xFFFFFFFF))]
        one += [("round_len", "U8", [2], b"\2\1"), ("accepted", "U8", [2], b"\1\0"), ("round_flags", "U8", [2], b"\0\1"),
                ("draft_parent", "U8", [2, 2], b"\xff\0\xff\xff")]
    return safetensors(four + two + one, meta)


def gguf():
    def s(x):
        return struct.pack("<Q", len(x)) + x

    kv = [s(b"general.architecture") + struct.pack("<I", 8) + s(b"llama"),
          s(b"llama.attention.head_count") + struct.pack("<II", 4, 2),
          s(b"llama.attention.head_count_kv") + struct.pack("<II", 4, 1),
          s(b"f") + struct.pack("<If", 6, 1.5),
          s(b"k") + struct.pack("<Ib", 1, 3),
          s(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + s(b"a") + s(b"") + s(b"bc"),
          s(b"tokenizer.ggml.token_type") + struct.pack("<IIQ3i", 9, 5, 3, 1, 3, -1)]
    blocks = {0: struct.pack("<32f", *range(32)), 1: struct.pack("<32e", *range(32)), 30: struct.pack("<H", 0x3F80) * 32,
              8: struct.pack("<e32b", 0.5, *range(32)), 2: struct.pack("<e", 0.5) + bytes(range(16)), 3: struct.pack("<ee", 0.5, -1) + bytes(range(16))}
    tensors = [(b"token_embd.weight", 8, 3), (b"output_norm.weight", 0, 1), (b"output.weight", 2, 3), (b"blk.0.attn_q.weight", 3, 4),
               (b"blk.0.attn_k.weight", 1, 2), (b"blk.0.ffn_up.weight", 30, 2)]
    info, data = b"", b""
    for name, kind, rows in tensors:
        info += s(name) + (struct.pack("<IQ", 1, 32) if rows == 1 else struct.pack("<IQQ", 2, 32, rows)) + struct.pack("<IQ", kind, len(data))
        data += blocks[kind] * rows
        data += b"\0" * (-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kv)) + b"".join(kv) + info
    return head + b"\0" * (-len(head) % 32) + data


def hf():
    """The first byte says which parser: c config.json, g generation_config.json, t tokenizer.json, i the index."""
    cfg = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 600, "eos_token_id": [2, 0], "bos_token_id": 1, "rms_norm_eps": 1e-5,
           "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}}
    yarn = dict(cfg, model_type="llama", rope_scaling=None, rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, "factor": 4, "mscale_all_dim": 1})
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    tok = {"added_tokens": [{"id": 5, "content": "<|a|>", "special": True}, {"id": 6, "content": "b", "special": False}], "normalizer": None,
           "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
           "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|a|>", "type_id": 0}}, {"Sequence": {"id": "A"}}]},
           "model": {"type": "BPE", "vocab": {"a": 0, "b": 6, "ab": 2}, "merges": ["a b", ["a", "ab"]]}}
    index = {"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}
    for which, value in (("c", cfg), ("c", yarn), ("g", {"eos_token_id": 3}), ("t", tok), ("t", dict(tok, pre_tokenizer=level, post_processor=None)), ("i", index)):
        yield which.encode() + json.dumps(value).encode()


def main():
    cfg = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 600, "draft_vocab_size": 100, "rms_norm_eps": 1e-5, "rope_theta": 1e5,
           "max_position_embeddings": 2048, "eos_token_id": [2, 3], "hidden_act": "silu", "num_hidden_layers": 1}
    rnd = {"schema": 1, "target_fp": "ab", "producer": "p", "seq": 3, "request": "r", "conversation": "c", "part": 0, "last": True, "version": 2,
           "domain": "code", "tenant": "", "context_bucket": 1, "k": 2, "rounds": 5, "proposed": [4, 4], "accepted": [3, 1], "tokens": 9,
           "prompt_tokens": 20, "ttft_ms": 12.5, "tpot_ms": [0] * 17, "drops": 0}
    word = {"schema": 1, "target_fp": "ab" * 32, "epoch": 3, "run": "r", "host": "h", "generation": 7, "live": 4, "weights_sha": "cd" * 32}
    seeds = {
        "safetensors": [safetensors([]), safetensors([("d2t", "I64", [2], b"\0" * 16), ("w", "BF16", [2, 3], b"\1" * 12), ("none", "F32", [0], b""),
                                                      ("t2d", "BOOL", [3], b"\1\0\1")], {"format": "pt"}, 8)],
        "record": [record(r, t, k) for r, t, k in ((1, 1, "BF16"), (0, 0, "BF16"), (1, 0, "I8"), (0, 1, "F8_E4M3"), (1, 1, "planes"), (0, 0, "zstd"), (1, 1, "zstd_rle"))],
        "fleet": [json.dumps(word).encode(), json.dumps(dict(word, live=0, weights_sha="")).encode()],
        "round": [json.dumps(rnd).encode(), json.dumps(dict(rnd, k=0, proposed=[], accepted=[])).encode()],
        "draft_config": [json.dumps(dict(cfg, **more)).encode() for more in (
            {}, {"eagle_aux_hidden_state_layer_ids": [2, 14, 26], "norm_before_fc": True},
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26], "use_aux_hidden_state": True}, "target_hidden_size": 96},
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4, "mscale": 0.7}, "fc_norm": True, "norm_output": True})],
        "gguf": [gguf()],
        "hf": list(hf()),
    }
    for name, inputs in seeds.items():
        os.makedirs(os.path.join(sys.argv[1], name), exist_ok=True)
        for i, raw in enumerate(inputs):
            with open(os.path.join(sys.argv[1], name, f"seed-{i}"), "wb") as f:
                f.write(raw)


if __name__ == "__main__":
    main()

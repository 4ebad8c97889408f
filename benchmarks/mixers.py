"""Training step, prefill and peak memory of every mixer and FFN, beside transformers' class for the same work.

    python benchmarks/mixers.py [--small] [--repeat N] [--only NAME ...] [--clock wall|cpu]

Small models in float32 on the CPU: batch 2, length 1024, d_model 512 (with --small batch 2, length 48, d_model 32). A
training step is a forward and a backward pass, a prefill a forward pass that fills a cache. Both sides have the same
sizes and run in turn in this process, after one run each that does not count; a ratio is ours over theirs, of medians.
Memory is the highest sum of what torch's allocator holds during a training step over what it held before: gradients
and activations, counted by torch's profiler to the byte, so that noise, libraries and the allocator's reserve stay out.
What transformers has no class for stands beside its Llama, without an aim. The cpu clock counts all threads, and is
the steadier one where others use the machine.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler is loud

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    JambaConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
)
from transformers.utils import logging

from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.build import build
from eulerstack.ir.normalizer import normalize_to_ir

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
MEASURES = ("train", "prefill", "memory")


@dataclass(frozen=True)
class Size:
    batch: int
    length: int
    d: int
    heads: int
    d_ff: int
    expert_ff: int
    vocab: int = 512

    @property
    def head_dim(self) -> int:
        return self.d // self.heads


SIZES = {"full": Size(2, 1024, 512, 8, 1408, 704), "small": Size(2, 48, 32, 4, 88, 40)}


@dataclass(frozen=True)
class Case:
    """`ours` are the layer templates, one layer each; `theirs` makes a configuration; `aims` bound the three ratios."""

    ours: Callable[[Size], list[dict]]
    theirs: Callable[[Size], object]
    aims: tuple[float | None, float | None, float | None] = (1.0, 1.0, 1.0)


def template(mixer: dict, ffn: dict | None = None) -> dict:
    return {"mixer": mixer, "ffn": ffn or {"type": "gated_mlp"}}


def attention(**options) -> dict:
    return {"type": "attention", "attention": options}


def mamba(variant: str, **options) -> dict:
    return {"type": "mamba", "mamba": {"variant": variant, **options}}


def moe(size: Size, **options) -> dict:
    return {"type": "moe", "moe": {"experts": 8, "top_k": 2, "d_ff": size.expert_ff, **options}}


def shared(size: Size) -> dict:
    """What the configurations of attention models have in common."""
    sizes = {"vocab_size": size.vocab, "hidden_size": size.d, "num_hidden_layers": 2, "intermediate_size": size.d_ff}
    heads = {"num_attention_heads": size.heads, "num_key_value_heads": size.heads // 2}
    return sizes | heads | {"tie_word_embeddings": True, "pad_token_id": None}


def llama(size: Size) -> LlamaConfig:
    return LlamaConfig(**shared(size))


def mistral(size: Size) -> MistralConfig:
    return MistralConfig(**shared(size), sliding_window=size.length // 4)


def mixtral(size: Size) -> MixtralConfig:
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "output_router_logits": True}
    return MixtralConfig(**shared(size) | {"intermediate_size": size.expert_ff}, **experts)


def deepseek(size: Size) -> DeepseekV3Config:
    n = size.head_dim
    latent = {"kv_lora_rank": size.d // 4, "q_lora_rank": size.d // 2, "qk_nope_head_dim": n, "v_head_dim": n}
    latent |= {"qk_rope_head_dim": n // 2, "num_key_value_heads": size.heads, "num_mtp_layers": 0}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": size.expert_ff}
    experts |= {"n_group": 4, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 1}
    return DeepseekV3Config(**shared(size) | latent | experts)


def deepseek_layers(size: Size) -> list[dict]:
    n = size.head_dim
    latent = {"latent_dim": size.d // 4, "q_latent_dim": size.d // 2, "qk_rope_dim": n // 2}
    mixer = attention(**latent, qk_nope_dim=n, v_head_dim=n)
    experts = {"affinity": "sigmoid", "routed_scale": 2.5, "shared_experts": 1, "bias_correction": {"enabled": True}}
    grouped = moe(size, **experts, load_balance_coef=0.0, balance={"groups": 4, "group_limit": 2})
    return [template(mixer), template(mixer, grouped)]


def mamba1(size: Size) -> MambaConfig:
    sizes = {"vocab_size": size.vocab, "hidden_size": size.d, "num_hidden_layers": 2, "state_size": 16}
    return MambaConfig(**sizes, pad_token_id=None)


def mamba2(size: Size) -> Mamba2Config:
    sizes = {"vocab_size": size.vocab, "hidden_size": size.d, "num_hidden_layers": 2, "state_size": 64, "n_groups": 1}
    heads = {"head_dim": size.head_dim, "num_heads": 2 * size.heads, "chunk_size": 256}
    return Mamba2Config(**sizes, **heads, tie_word_embeddings=True, pad_token_id=None)


def jamba(size: Size) -> JambaConfig:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1}
    layers = {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "output_router_logits": True}
    return JambaConfig(**shared(size) | layers, **experts, use_mamba_kernels=False)


def jamba_layers(size: Size) -> list[dict]:
    recurrent, experts = mamba("mamba1", d_state=16, inner_norm=True), moe(size, d_ff=size.d_ff, normalize_top_k=False)
    return [template(recurrent), template(recurrent, experts), template(attention()), template(recurrent, experts)]


def alone(*templates: dict) -> Case:
    """A case without a peer: two layers, beside Llama."""
    return Case(lambda size: list(templates) * (2 // len(templates)), llama, (None, None, None))


INDEXER = {"arch": "relu_mha", "n_heads": 2, "d_per_head": 16}
COMPRESSED = {"type": "csa", "m_block": 8, "indexer": INDEXER, "top_k_blocks": 4}
BRANCHES = {"branches": {"near": attention(window=32), "far": {"type": "retnet"}}}
NONE = {"type": "none"}

CASES = {
    "attention": Case(lambda size: [template(attention())] * 2, llama),
    "window": Case(lambda size: [template(attention(window=size.length // 4))] * 2, mistral),
    "moe": Case(lambda size: [template(attention(), moe(size))] * 2, mixtral),
    "deepseek": Case(deepseek_layers, deepseek),
    "mamba1": Case(lambda size: [template(mamba("mamba1", d_state=16), NONE)] * 2, mamba1, (0.2, 0.2, 1.0)),
    "mamba2": Case(lambda size: [template(mamba("mamba2", d_state=64, head_dim=size.head_dim), NONE)] * 2, mamba2),
    "jamba": Case(jamba_layers, jamba, (0.2, 0.2, 1.0)),
    "latent": alone(template(attention(latent_dim=16))),
    "compressed": alone(template(attention(compression=COMPRESSED))),
    "retnet": alone(template({"type": "retnet"})),
    "hyena": alone(template({"type": "hyena"})),
    "ttt_layer": alone(template({"type": "ttt_layer"})),
    "branched": alone(template({"type": "branched", "branched": BRANCHES})),
    "mlp": alone(template(attention(), {"type": "mlp"})),
}


def payload(case: Case, size: Size) -> dict:
    """config.json of our side, from a preset."""
    layers = {f"layer{i}": layer for i, layer in enumerate(case.ours(size))}
    model = {"name": "benchmark", "d_model": size.d, "vocab_size": size.vocab, "max_seq_len": size.length}
    heads = {"n_heads": size.heads, "n_kv_heads": size.heads // 2, "d_ff": size.d_ff, "dtype": "float32"}
    preset = {
        "schema_version": 1,
        "model": model | heads,
        "tokenizer_contract": {"type": "byte_bpe"},
        "embedding": {"type": "learned", "positional": "rope"},
        "layer_templates": layers,
        "layer_schedule": [{"template": name} for name in layers],
        "head": {"type": "causal_lm"},
    }
    return runtime_config(normalize_to_ir(preset))


def models(case: Case, size: Size) -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    return {
        "ours": build(payload(case, size)),
        "theirs": AutoModelForCausalLM.from_config(case.theirs(size)),
    }


def train(model: torch.nn.Module, ids: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()


def prefill(model: torch.nn.Module, ids: torch.Tensor) -> None:
    with torch.no_grad():
        model(input_ids=ids, use_cache=True)


def medians(work: Callable, sides: dict, ids: torch.Tensor, repeat: int, clock: Callable[[], float]) -> dict:
    """Seconds of `work` on each side, the sides in turn."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    for model in sides.values():
        model.train(work is train)
    for turn in range(repeat + 1):
        for side, model in sides.items():
            start = clock()
            work(model, ids)
            if turn:
                found[side].append(clock() - start)
    return {side: median(seconds) for side, seconds in found.items()}


def peak(model: torch.nn.Module, ids: torch.Tensor) -> int:
    """The most bytes that a training step holds at once, beyond those held before it."""
    model.train().zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        train(model, ids)
    events = (e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]")
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measure(case: Case, size: Size, repeat: int, clock: Callable[[], float]) -> dict[str, dict[str, float]]:
    sides = models(case, size)
    ids = torch.randint(2, size.vocab, (size.batch, size.length))
    found = {work.__name__: medians(work, sides, ids, repeat, clock) for work in (train, prefill)}
    return found | {"memory": {side: peak(model, ids) for side, model in sides.items()}}


def report(name: str, case: Case, found: dict[str, dict[str, float]]) -> list[str]:
    """Print a line; returns the measures that miss their aim."""
    ratios = {key: found[key]["ours"] / found[key]["theirs"] for key in MEASURES}
    scales = {"train": 1e3, "prefill": 1e3, "memory": 1e-6}
    cells = [
        f"{scales[key] * found[key]['ours']:10.1f}{scales[key] * found[key]['theirs']:10.1f}{ratios[key]:7.2f}"
        for key in MEASURES
    ]
    print(f"{name:12s}{''.join(cells)}", flush=True)
    bounds = zip(MEASURES, case.aims, strict=True)
    return [f"{name} {key}: {ratios[key]:.2f}, aim {aim:.2f}" for key, aim in bounds if aim and ratios[key] > aim + 0.005]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="sanity size: does it run at all?")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    asked = parser.parse_args()
    logging.set_verbosity_error()
    columns = ("train, ms", "prefill, ms", "memory, MB")
    print(f"{'':12s}" + "".join(f"{name:>27s}" for name in columns))
    print(f"{'':12s}" + f"{'ours':>10s}{'theirs':>10s}{'ratio':>7s}" * 3)
    missed = []
    for name in asked.only:
        found = measure(CASES[name], SIZES["small" if asked.small else "full"], asked.repeat, CLOCKS[asked.clock])
        missed += report(name, CASES[name], found)
    print("every aim is met" if not missed else "missed:\n  " + "\n  ".join(missed))


if __name__ == "__main__":
    main()

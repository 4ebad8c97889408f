"""Options of every kind of mixer and FFN at one odd set of sizes, as blocks and as modules. Read by path (runpy)."""

import importlib
import json

import torch
from pydantic import TypeAdapter
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from eulerstack.language.block import Dims
from eulerstack.language.template import FFNS, MIXERS, Ffn, Mixer
from eulerstack.modeling.configuration_eulerstack import EulerStackConfig
from eulerstack.modeling.context import Context
from eulerstack.modeling.layer import build_part

DIMS = Dims(d_model=44, n_heads=6, n_kv_heads=3, head_dim=10, d_ff=37, max_seq_len=64, positional="rope", dtype_bytes=2)
CASES = {
    "attention": [
        {},
        {"qkv_bias": True, "o_bias": True, "qk_norm": "rmsnorm", "logit_softcap": 30.0, "scale": 0.2},
        {"qk_norm": "rmsnorm_full"},
        {"window": 7},
        {"window": 1},
        {"window": 9, "window_mode": "dilated", "window_dilation": 2},
        {"window": 5, "window_mode": "nsa", "window_dilation": 2},
        {"latent_dim": 13},
        {"latent_dim": 13, "qkv_bias": True, "o_bias": True, "qk_norm": "rmsnorm_full", "window": 6},
        {"latent_dim": 13, "qk_rope_dim": 4},
        {"latent_dim": 13, "q_latent_dim": 9, "qk_rope_dim": 6, "qk_nope_dim": 7, "v_head_dim": 5, "qkv_bias": True},
        {"latent_dim": 13, "v_head_dim": 9, "window": 6, "attention_sinks": {"n_per_head": 2}},
        {"attention_sinks": {}},
        {"attention_sinks": {"learnable": False}, "window": 4},
    ],
    "mamba": [
        {"variant": "mamba1", "d_state": 5},
        {"variant": "mamba1", "d_state": 3, "d_conv": 2, "expand": 3, "dt_rank": 7, "inner_norm": True, "bias": True},
        {"d_state": 6, "head_dim": 11},
        {"d_state": 4, "head_dim": 22, "n_groups": 2, "d_conv": 3, "conv_bias": False, "bias": True, "expand": 1},
    ],
    "ttt_layer": [
        {},
        {"inner_model": {"type": "linear"}, "mini_batch": 5},
        {"inner_model": {"hidden": 7}, "inner_steps_per_token": 3, "mini_batch": 3},
        {"inner_model": {"hidden": 7}, "inner_optimizer": "adamw", "inner_steps_per_token": 2, "mini_batch": 4},
    ],
    "retnet": [{}, {"chunkwise": False, "chunk_size": 4, "rope": False}],
    "hyena": [
        {},
        {"depth": 3, "filter_hidden": 5, "filter_decay": 2.0, "short_conv": 4},
        {"depth": 1, "short_conv": 1},
    ],
    "branched": [
        {"branches": {"b": {"type": "attention"}, "a/c.": {"type": "attention", "attention": {"latent_dim": 13}}}},
        {
            "branches": {n: {"type": "attention", "attention": {"qkv_bias": True}} for n in "cab"},
            "selector": {"type": "top_k", "top_k": 2},
        },
    ],
    "none": [{}],
    "mlp": [{}, {"bias": True, "activation": "relu2"}],
    "gated_mlp": [{}, {"bias": True, "activation": "geglu"}, {"activation": "swiglu_clamped"}],
    "moe": [
        {"experts": 5, "top_k": 2},
        {"experts": 4, "top_k": 4, "d_ff": 9, "shared_experts": 2, "shared_d_ff": 5},
        {"experts": 3, "top_k": 1, "bias": True, "bias_correction": {"enabled": True}, "shared_experts": 1},
        {"experts": 5, "top_k": 2, "routing": {"type": "hash", "hash_salt": -3}, "load_balance_coef": 0.5},
        {"experts": 5, "top_k": 2, "bias": True, "router_bias": True},
        {"experts": 12, "top_k": 3, "balance": {"group_limit": 2, "sequence_aux_coef": 0.1}},
        {"experts": 12, "top_k": 3, "balance": {"groups": 6, "group_limit": 2}, "bias_correction": {"enabled": True}},
    ],
}


def written(kind: str, options: dict) -> dict:
    """The mapping of a preset file: options stand in the block named for the type, but for those of a plain FFN."""
    if kind in ("none", "mlp", "gated_mlp"):
        return {"type": kind} | options
    outer = {"bias": options["bias"]} if kind == "moe" and "bias" in options else {}
    inner = {key: value for key, value in options.items() if key not in outer}
    return {"type": kind, {"ttt_layer": "ttt"}.get(kind, kind): inner} | outer


def block(role: str, kind: str, options: dict):
    adapter = TypeAdapter(Mixer if role == "mixer" else Ffn)
    return adapter.validate_json(json.dumps(written(kind, options))).completed(DIMS)


INDEXER = {"arch": "relu_mha", "n_heads": 3, "d_per_head": 6}
CASES["attention"] += [
    {"compression": {"type": "hca", "m_block": 3}},
    {"compression": {"type": "hca", "m_block": 1, "pool": "max"}, "qkv_bias": True, "window": 4},
    {"compression": {"type": "csa", "m_block": 4, "pool": "softmax_gated", "indexer": INDEXER, "top_k_blocks": 2}}
    | {"window": 6, "qk_norm": "rmsnorm_full", "attention_sinks": {}},
    {"compression": {"type": "nsa_learned", "m_block": 5, "pool": "learned_pool"} | {"indexer": INDEXER}}
    | {"qkv_bias": True, "o_bias": True, "qk_norm": "rmsnorm", "window": 2},
]
ROLES = {"mixer": MIXERS, "ffn": FFNS}
BUILT = [(role, kind) for role, kinds in ROLES.items() for kind in kinds]
ALL = [(role, kind, options) for role, kind in BUILT for options in CASES[kind]]
REAL = [case for case in ALL if case[1] != "none"]


class Files(dict):
    """The class of each modeling file by its name."""

    def __missing__(self, name: str) -> type:
        file = importlib.import_module(f"eulerstack.modeling.{name}")
        return file.Mixer if name.startswith("mixer_") else file.FFN


def module(role: str, part, dtype=torch.float32) -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    config = EulerStackConfig(hidden_size=DIMS.d_model, positional="rope", rope_parameters=rope)
    config._attn_implementation = "eager"
    built = build_part(Files(), role, config, 0, part.runtime(DIMS))
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.1)
    return built.to(dtype).eval()


def context(length: int, use_cache: bool = False) -> Context:
    positions = torch.arange(length)[None]
    return Context(positions=positions, key_positions=positions, use_cache=use_cache, input_ids=positions)


def counted(built: nn.Module, *inputs) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(*inputs)
    return counter.get_total_flops()

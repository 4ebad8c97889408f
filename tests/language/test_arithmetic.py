"""What a mixer or FFN says of itself equals what its modeling code does; nobody who is built can stay out."""

import importlib
import json
import math
from dataclasses import replace

import pytest
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
# Mixers whose arithmetic is more than matrix products, each with a test of its own below.
BEYOND_PRODUCTS = {"mamba", "ttt_layer", "retnet", "hyena"}
# Mixers whose bytes the language's two words for `state` do not describe: docs/language.md, state.
DECLARED_OTHERWISE = {"retnet", "hyena"}
every_case = pytest.mark.parametrize(("role", "kind", "options"), ALL, ids=str)
every_module = pytest.mark.parametrize(("role", "kind", "options"), REAL, ids=str)


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


@every_module
def test_tensors(role, kind, options):
    part = block(role, kind, options)
    built = module(role, part)
    assert part.tensors(DIMS) == {name: tuple(p.shape) for name, p in built.named_parameters()}
    if role == "ffn":
        assert part.buffers(DIMS) == {name: tuple(b.shape) for name, b in built.named_buffers()}


@every_case
def test_completing_twice_is_completing_once(role, kind, options):
    part = block(role, kind, options)
    assert part.completed(DIMS) == part


@every_case
def test_a_shrunk_part_is_complete_and_of_the_same_kind(role, kind, options):
    part = block(role, kind, options)
    small = replace(DIMS, d_model=16, n_heads=4, n_kv_heads=2, head_dim=4, d_ff=24, max_seq_len=32)
    shrunk = part.shrunk(DIMS, small)
    assert shrunk.completed(small) == shrunk
    before, after = part.runtime(DIMS), shrunk.runtime(small)
    assert before.keys() == after.keys()
    assert before["type"] == after["type"]
    for key, value in before.items():
        if value is None or (isinstance(value, bool | str | dict) and key not in ("branches", "balance")):
            assert after[key] == value


@pytest.mark.parametrize("length", [1, 5, 23])
@pytest.mark.parametrize(
    ("role", "kind", "options"),
    [c for c in REAL if c[1] not in BEYOND_PRODUCTS and not {"window", "compression"} & c[2].keys()],
    ids=str,
)
def test_flops_of_products(role, kind, options, length):
    part = block(role, kind, options)
    x = torch.randn(1, length, DIMS.d_model, generator=torch.Generator().manual_seed(0))
    inputs = (x, context(length), None) if role == "mixer" else (x, context(length))
    assert counted(module(role, part), *inputs) == length * part.flops(DIMS, length)


@pytest.mark.parametrize("length", [1, 2, 6, 10, 11, 12, 30])
@pytest.mark.parametrize(
    "options", [o for o in CASES["attention"] if "window" in o and "compression" not in o], ids=str
)
def test_flops_of_windows_count_the_keys_that_the_mask_shows(options, length):
    from eulerstack.modeling.op_mask import visible

    part = block("mixer", "attention", options)
    keys = int(visible(context(length), module("mixer", part).window)[0, -1].sum())
    everywhere = replace(part, attention=replace(part.attention, window=None, window_mode="standard"))
    assert part.flops(DIMS, length) == everywhere.flops(DIMS, keys)


class Number:
    """A number that counts what is done with it."""

    done = 0

    def __mul__(self, other):
        Number.done += 1
        return self

    __add__ = __mul__


def mamba1_step(channels: int, states: int):
    """The recurrence of Gu & Dao 2023, equation 2, and the skip; exponentials are not counted."""
    A = B = C = D = h = step = x = Number()
    for _ in range(channels):
        drive = step * x
        reads = []
        for _ in range(states):
            decay = step * A
            h = decay * h + drive * B
            reads.append(C * h)
        y = D * x
        for read in reads:
            y = y + read


def mamba2_step(heads: int, head_dim: int, states: int):
    """The recurrence of Dao & Gu 2024, section 7: a head has one decay."""
    A = B = C = D = h = step = x = Number()
    for _ in range(heads):
        decay = step * A
        for _ in range(head_dim):
            drive = step * x
            reads = []
            for _ in range(states):
                h = decay * h + drive * B
                reads.append(C * h)
            y = D * x
            for read in reads:
                y = y + read


@pytest.mark.parametrize("options", CASES["mamba"], ids=str)
def test_flops_of_recurrences(options):
    part = block("mixer", "mamba", options)
    built, own = module("mixer", part), part.mamba
    channels = own.expand * DIMS.d_model
    linear = sum(2 * m.weight.numel() for m in built.modules() if isinstance(m, nn.Linear))
    convolution = 2 * built.conv1d.weight.numel()
    Number.done = 0
    if own.variant == "mamba1":
        mamba1_step(channels, own.d_state)
    else:
        mamba2_step(channels // own.head_dim, own.head_dim, own.d_state)
    assert part.flops(DIMS, 1) == part.flops(DIMS, 99) == linear + convolution + Number.done


def retention_step(heads: int, keys: int, values: int):
    """The recurrence of Sun et al. 2023, equation 6: a head has one decay."""
    gamma = k = q = v = S = Number()
    for _ in range(heads * values):
        y = Number()
        for _ in range(keys):
            S = gamma * S + k * v
            y = y + q * S


def adamw_step():
    """One weight at one token, as modeling/op_ttt.py defines it; b1, b2 and powers of them are numbers at hand."""
    gradient = m = v = weight = Number()
    m = m * 0.9 + gradient * 0.1
    v = v * 0.999 + gradient * gradient * 0.001
    step = (m * 0.1) * (v * 0.001 + 1e-6)  # * rsqrt, which is not counted
    weight * 0.9 + step * 0.1


@pytest.mark.parametrize("options", CASES["ttt_layer"], ids=str)
def test_flops_of_inner_models_in_full_mini_batches(options):
    part = block("mixer", "ttt_layer", options)
    own, built = part.ttt, module("mixer", part)
    x = torch.randn(1, 3 * own.mini_batch, DIMS.d_model, generator=torch.Generator().manual_seed(0))
    moved, Number.done = 0, 0
    if own.inner_optimizer == "adamw":
        adamw_step()
        inner = sum(p.numel() for name, p in built.named_parameters() if name[0] in "Wb")
        moved = own.inner_steps_per_token * inner * Number.done
    products = counted(built, x, context(x.shape[1]), None)
    assert part.flops(DIMS, 1) == part.flops(DIMS, 99) == products / x.shape[1] + moved


@pytest.mark.parametrize("options", CASES["retnet"], ids=str)
def test_flops_of_retention(options):
    part = block("mixer", "retnet", options)
    linear = sum(2 * m.weight.numel() for m in module("mixer", part).modules() if isinstance(m, nn.Linear))
    Number.done = 0
    retention_step(DIMS.n_heads, DIMS.head_dim, 2 * DIMS.head_dim)
    assert part.flops(DIMS, 1) == part.flops(DIMS, 99) == linear + Number.done


@pytest.mark.parametrize("length", [2, 5, 23])
@pytest.mark.parametrize("options", CASES["hyena"], ids=str)
def test_flops_of_long_convolutions(options, length):
    """Three real transforms of 2 length points, a product of spectra, the skip; the rest is products."""
    part = block("mixer", "hyena", options)
    x = torch.randn(1, length, DIMS.d_model, generator=torch.Generator().manual_seed(0))
    products = counted(module("mixer", part), x, context(length), None)
    transforms = 3 * 2.5 * 2 * length * math.log2(2 * length)
    per_channel = transforms + 6 * length + 2 * length
    assert part.flops(DIMS, length) * length - products == pytest.approx(
        per_channel * part.hyena.depth * DIMS.d_model, abs=length
    )


@pytest.mark.parametrize("length", [1, 4, 5, 6, 21])
@pytest.mark.parametrize(("role", "kind", "options"), [c for c in REAL if c[0] == "mixer"], ids=str)
def test_bytes_of_cache_and_state(role, kind, options, length):
    part = block(role, kind, options)
    x = torch.randn(1, length, DIMS.d_model, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad():
        _, state = module(role, part, torch.bfloat16)(x, context(length, use_cache=True), None)
    held = sum(tensor.nbytes for tensor in state.values())
    assert part.kv_cache_bytes(DIMS, length) + part.state_bytes(DIMS) == held
    if kind not in DECLARED_OTHERWISE:
        assert (part.kv_cache_bytes(DIMS, 50) > 0) <= ("kv_cache" in part.keeps)
        assert (part.state_bytes(DIMS) > 0) == ("ssm_state" in part.keeps)


@pytest.mark.parametrize("options", CASES["moe"], ids=str)
def test_idle_parameters_are_those_without_gradient(options):
    """One token, one backward pass: what no gradient reaches in the experts is what rests."""
    part = block("ffn", "moe", options)
    built = module("ffn", part)
    y, record = built(torch.randn(1, 1, DIMS.d_model, generator=torch.Generator().manual_seed(0)), context(1))
    y.square().sum().backward()
    visited = set(record.selected.flatten().tolist())
    experts = part.moe.experts
    resting = [e for e in range(experts) if e not in visited]
    assert len(visited) == part.moe.top_k
    packed = list(built.experts.parameters())
    assert all(p.grad[e].abs().sum() == 0 for p in packed for e in resting)
    assert part.idle(DIMS) == sum(p[e].numel() for p in packed for e in resting)

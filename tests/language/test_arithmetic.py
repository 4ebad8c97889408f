"""What a mixer or FFN says of itself equals what its modeling code does; nobody who is built can stay out."""

from dataclasses import replace
from pathlib import Path
from runpy import run_path

import pytest
import torch

CASES = run_path(str(Path(__file__).with_name("cases.py")))
DIMS, ALL, REAL, OPTIONS = (CASES[name] for name in ("DIMS", "ALL", "REAL", "CASES"))
block, module, context, counted = (CASES[name] for name in ("block", "module", "context", "counted"))
# Mixers whose arithmetic is more than matrix products: test_arithmetic_of_recurrences.py.
BEYOND_PRODUCTS = {"mamba", "ttt_layer", "retnet", "hyena"}
# Mixers whose bytes the language's two words for `state` do not describe: docs/language.md, state.
DECLARED_OTHERWISE = {"retnet", "hyena"}
every_case = pytest.mark.parametrize(("role", "kind", "options"), ALL, ids=str)
every_module = pytest.mark.parametrize(("role", "kind", "options"), REAL, ids=str)


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
    "options", [o for o in OPTIONS["attention"] if "window" in o and "compression" not in o], ids=str
)
def test_flops_of_windows_count_the_keys_that_the_mask_shows(options, length):
    from eulerstack.modeling.op_mask import visible

    part = block("mixer", "attention", options)
    keys = int(visible(context(length), module("mixer", part).window)[0, -1].sum())
    everywhere = replace(part, attention=replace(part.attention, window=None, window_mode="standard"))
    assert part.flops(DIMS, length) == everywhere.flops(DIMS, keys)


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


@pytest.mark.parametrize("options", OPTIONS["moe"], ids=str)
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

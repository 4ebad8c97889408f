"""The indexer: transformers' DeepSeek-V4 scores, the choice of the best blocks, and what it learns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eulerstack.modeling.configuration_eulerstack import EulerStackConfig
from eulerstack.modeling.context import Context
from eulerstack.modeling.op_blocks import blocks_of
from eulerstack.modeling.op_indexer import Indexer, best, nudge

D, T, M = 11, 23, 3
HEADS, WIDTH = 3, 6
HALVES = [i + 2 * j for i in (0, 1) for j in range(WIDTH // 2)]
ROPE = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}


def made(arch="relu_mha", dtype="fp32", positional="rope", n_heads=HEADS, of=torch.float64) -> Indexer:
    config = EulerStackConfig(hidden_size=D, positional=positional, rope_parameters=ROPE, rms_norm_eps=1e-5)
    torch.manual_seed(4)
    sizes = {"pool": "softmax_gated", "m_block": M, "n_heads": n_heads, "d_per_head": WIDTH}
    built = Indexer(config, arch=arch, dtype=dtype, **sizes)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built.to(of)


def inputs() -> torch.Tensor:
    return torch.randn(2, T, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def context(**named) -> Context:
    positions = torch.arange(T)[None]
    return Context(positions=positions, key_positions=positions, **named)


def scores(indexer: Indexer, x: torch.Tensor) -> torch.Tensor:
    here = context()
    return indexer(x, here, blocks_of(here, M), None)[0]


def theirs_of(mine: Indexer, top_k: int):
    """transformers' indexer with the same weights; the series `Ca` of the block before is shut by its gate."""
    v4 = pytest.importorskip("transformers.models.deepseek_v4", reason="this transformers has no DeepSeek-V4")
    config = v4.DeepseekV4Config(
        hidden_size=D,
        head_dim=WIDTH,
        q_lora_rank=D,
        index_head_dim=WIDTH,
        index_n_heads=HEADS,
        index_topk=top_k,
        rms_norm_eps=1e-5,
        compress_rates={"compressed_sparse_attention": M},
        rope_parameters={"main": dict(ROPE), "compress": dict(ROPE)},
    )
    other = v4.modeling_deepseek_v4.DeepseekV4Indexer(config).float()
    back = torch.tensor(HALVES).argsort()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
        other.kv_proj.weight[WIDTH:] = mine.pool.k_proj.weight[back]
        other.gate_proj.weight[WIDTH:] = mine.pool.gate_proj.weight[back]
        other.position_bias[:, :WIDTH] = -1e4
        other.position_bias[:, WIDTH:] = mine.pool.position_bias[:, back]
        other.kv_norm.weight.copy_(mine.k_norm.weight[back])
        other.q_b_proj.weight.copy_(mine.q_proj.weight.view(HEADS, WIDTH, D)[:, back].flatten(0, 1))
        other.scorer.weights_proj.weight.copy_(mine.weights_proj.weight)
    return other


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_relu_mha_chooses_what_transformers_chooses(top_k):
    mine, x = made(of=torch.float32), inputs().float()
    theirs, seen = theirs_of(mine, top_k), {}
    theirs.scorer.register_forward_hook(lambda module, args, out: seen.update(scores=out))
    here = context()
    with torch.no_grad():
        got = scores(mine, x)
        index = theirs(x, x, here.positions.expand(2, -1), None, 0)
    visible = blocks_of(here, M).visible()
    assert ((got - seen["scores"]).abs() * visible).max() < 1e-4
    want = torch.zeros(2, T, T // M + 1, dtype=torch.bool).scatter(2, index.where(index >= 0, T // M), True)
    chosen = [c.sort(-1).values for c in (best(got, visible, top_k) * got.exp(), want[..., : T // M] * got.exp())]
    assert (chosen[0] - chosen[1]).abs().max() < 1e-4  # of equal scores, zeros, transformers takes any


def test_a_plain_sum_of_dot_products_is_one_dot_product():
    mine, one = made("dot_product", positional="none"), made("dot_product", positional="none", n_heads=1)
    one.load_state_dict(mine.state_dict() | {"q_proj.weight": mine.q_proj.weight.view(HEADS, WIDTH, D).sum(0).detach()})
    assert (scores(mine, inputs()) - scores(one, inputs())).abs().max() < 1e-5  # q and k are rounded to fp32


def test_block_selection_shares_out_one_for_each_head():
    got, visible = scores(made("learned_block_sel"), inputs()), blocks_of(context(), M).visible()[0]
    assert ((got * visible).sum(-1)[:, M - 1 :] - HEADS).abs().max() < 1e-6
    assert (got[:, :, 1:][:, visible[:, 1:]] > 0).all()


def test_each_format_rounds_otherwise():
    seen = [scores(made(dtype=dtype), inputs()) for dtype in ("fp4", "fp8", "bf16", "fp32")]
    gaps = [(a - seen[3]).abs().max().item() for a in seen]
    assert gaps[0] > 3 * gaps[1] > 6 * gaps[2] > 0


@pytest.mark.parametrize("arch", ["relu_mha", "dot_product", "learned_block_sel"])
@pytest.mark.parametrize("dtype", ["fp4", "fp8", "bf16"])
def test_gradients_go_straight_through_the_rounding(arch, dtype):
    """To first order the rounding is not there: the gradients of scores are near those of scores without it."""
    x, grads = inputs(), []
    for kind in (dtype, "fp32"):
        indexer = made(arch, kind)
        scores(indexer, x).square().sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in indexer.parameters()]))
    assert torch.nn.functional.cosine_similarity(*grads, dim=0) > (0.8 if dtype == "fp4" else 0.99)


@given(st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_the_best_are_the_highest_and_of_equal_ones_the_newer(rows, k):
    values = torch.tensor([rows], dtype=torch.float64)
    visible = (torch.arange(6) < torch.arange(2, 2 + len(rows))[:, None])[None]
    got = best(values, visible, k)
    for t, row in enumerate(rows):
        order = sorted(range(min(6, t + 2)), key=lambda e: (-row[e], -e))[:k]
        assert got[0, t].nonzero().flatten().tolist() == sorted(order)


def test_a_nudge_is_nothing_with_a_gradient():
    values = torch.tensor([[1.5, -2.0]], requires_grad=True)
    nothing = nudge(values)
    assert torch.equal(nothing, torch.zeros(1, 2))
    (nothing * torch.tensor([[3.0, 5.0]])).sum().backward()
    assert torch.equal(values.grad, torch.tensor([[3.0, 5.0]]))


def test_an_unknown_indexer_is_refused():
    with pytest.raises(ValueError, match="mlp"):
        made("mlp")

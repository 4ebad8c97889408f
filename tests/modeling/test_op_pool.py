"""Pools against transformers' DeepSeek-V4 compressors, and against each other where they must coincide.

What V4 has more and these pools have not: csa's compressor also reads the block before (the series `Ca`), here shut by
its gate; one vector serves as key and as value.
"""

from types import SimpleNamespace

import pytest
import torch

from eulerstack.modeling.context import Context
from eulerstack.modeling.op_blocks import blocks_of, places
from eulerstack.modeling.op_pool import Pool
from eulerstack.modeling.op_rope import rotary, rotate

D, T, WIDTH = 11, 23, 6
HALVES = [i + 2 * j for i in (0, 1) for j in range(WIDTH // 2)]  # V4 turns the pairs (2j, 2j + 1), we (j, j + W / 2)
SHUT = -1e4
RATES = {"csa": "compressed_sparse_attention", "hca": "heavily_compressed_attention"}


def made(pool: str, m_block: int, streams=("k",)) -> Pool:
    torch.manual_seed(3)
    built = Pool(D, pool=pool, m_block=m_block, streams=streams, width=WIDTH, bias=False)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter)
    return built.double()


def inputs(length: int = T) -> torch.Tensor:
    return torch.randn(2, length, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def context(length: int = T, **named) -> Context:
    positions = torch.arange(length)[None]
    return Context(positions=positions, key_positions=positions, **named)


def pooled(pool: Pool, x: torch.Tensor, stream: str = "k") -> torch.Tensor:
    here = context(x.shape[1])
    return pool(x, here, blocks_of(here, pool.m_block), None)[0][stream]


def compressor(kind: str, m_block: int):
    """transformers' compressor of one entry of WIDTH features, and its configuration."""
    v4 = pytest.importorskip("transformers.models.deepseek_v4", reason="this transformers has no DeepSeek-V4")
    turn = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}
    settings = v4.DeepseekV4Config(
        hidden_size=D,
        head_dim=WIDTH,
        q_lora_rank=D,
        index_head_dim=WIDTH,
        index_n_heads=3,
        index_topk=2,
        rms_norm_eps=1e-5,
        compress_rates={RATES[kind]: m_block},
        rope_parameters={"main": turn, "compress": dict(turn)},
    )
    code = v4.modeling_deepseek_v4
    built = (code.DeepseekV4CSACompressor if kind == "csa" else code.DeepseekV4HCACompressor)(settings).float()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built.eval()


@pytest.mark.parametrize(("kind", "m_block"), [("hca", 4), ("hca", 1), ("csa", 3)])
def test_softmax_gated_is_transformers_own(kind, m_block):
    theirs, mine, x = compressor(kind, m_block), made("softmax_gated", m_block).float(), inputs().float()
    own = slice(WIDTH, None) if kind == "csa" else slice(None)
    with torch.no_grad():
        if kind == "csa":
            theirs.position_bias[:, :WIDTH] = SHUT
            theirs.gate_proj.weight[:WIDTH] = 0.0
        mine.k_proj.weight.copy_(theirs.kv_proj.weight[own][HALVES])
        mine.gate_proj.weight.copy_(theirs.gate_proj.weight[own][HALVES])
        mine.position_bias.copy_(theirs.position_bias[:, own][:, HALVES])
        here = context()
        entries = pooled(mine, x)
        entries = torch.nn.functional.rms_norm(entries, (WIDTH,), theirs.kv_norm.weight[HALVES], 1e-5)
        where = places(here, blocks_of(here, m_block))
        rope = SimpleNamespace(
            rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
            max_position_embeddings=64,
        )
        entries = rotate(entries[:, :, None], *rotary(rope, here, where, WIDTH, x.dtype, "entries"))[:, :, 0]
        want, _ = theirs(x, x, here.positions.expand(2, -1), None, 0)
    assert entries.shape == (2, T // m_block, WIDTH)
    assert (entries - want[:, 0][..., HALVES]).abs().max() < 1e-5


def test_a_new_learned_pool_is_a_mean():
    learned, mean = made("learned_pool", 4), made("mean", 4)
    torch.nn.init.zeros_(learned.position_bias)
    learned.k_proj.load_state_dict(mean.k_proj.state_dict())
    assert (pooled(learned, inputs()) - pooled(mean, inputs())).abs().max() < 1e-12


def test_a_gate_that_says_nothing_leaves_the_learned_pool():
    gated, learned = made("softmax_gated", 4), made("learned_pool", 4)
    learned.load_state_dict({n: p for n, p in gated.state_dict().items() if not n.startswith("gate")})
    assert (pooled(gated, inputs()) - pooled(learned, inputs())).abs().max() > 1e-2
    torch.nn.init.zeros_(gated.gate_proj.weight)
    assert (pooled(gated, inputs()) - pooled(learned, inputs())).abs().max() < 1e-12


def test_a_maximum_is_each_features_largest():
    pool, x = made("max", 5), inputs()
    u = pool.k_proj(x)
    want = torch.stack([u[:, j * 5 : j * 5 + 5].max(1).values for j in range(T // 5)], 1)
    assert torch.equal(pooled(pool, x), want)


def test_keys_and_values_are_pooled_by_the_same_weights():
    pool, x = made("softmax_gated", 4, ("k", "v")), inputs()
    pool.v_proj.load_state_dict(pool.k_proj.state_dict())
    assert torch.equal(pooled(pool, x, "k"), pooled(pool, x, "v"))


@pytest.mark.parametrize("pool", ["mean", "max", "softmax_gated", "learned_pool"])
def test_a_block_of_one_token_is_that_token(pool):
    built, x = made(pool, 1), inputs()
    assert (pooled(built, x) - built.k_proj(x)).abs().max() < 1e-12


def test_an_unknown_pool_is_refused():
    with pytest.raises(ValueError, match="median"):
        made("median", 2)

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eulerstack.modeling.op_routing import affinity, hash_experts, mix, within_groups


@pytest.mark.parametrize(
    ("kind", "formula"),
    [("sigmoid", lambda x: 1 / (1 + math.exp(-x))), ("sqrt_softplus", lambda x: math.sqrt(math.log1p(math.exp(x))))],
)
def test_elementwise_affinity_is_its_formula(kind, formula):
    x = torch.linspace(-40, 30, 71, dtype=torch.float64)
    want = torch.tensor([formula(v) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(affinity(x, kind), want, rtol=1e-8, atol=0)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "sqrt_softplus"])
def test_affinity_of_extreme_logits_has_finite_gradients_in_float32(kind):
    x = torch.tensor([-1e4, -200.0, -90.0, -30.0, 0.0, 90.0, 1e4], dtype=torch.bfloat16, requires_grad=True)
    y = affinity(x, kind)
    y.sum().backward()
    assert y.dtype == torch.float32
    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()


def scrambled(x):
    """splitmix32's output function, in Python's numbers without end."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) % 2**32
    x = ((x ^ (x >> 15)) * 0x735A2D97) % 2**32
    return x ^ (x >> 15)


def by_hand(token, salt, experts, top_k):
    """The draws of one token as docs/language.md has them: strike each expert drawn off a list."""
    salt %= 2**64
    key = scrambled(token ^ scrambled(scrambled(salt % 2**32) ^ (salt >> 32)))
    left = list(range(experts))
    return [left.pop(scrambled((key + (k + 1) * 0x9E3779B9) % 2**32) % len(left)) for k in range(top_k)]


@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(1, 9).flatmap(lambda e: st.tuples(st.just(e), st.integers(1, e))),
    st.sampled_from([torch.int32, torch.int64]),
)
def test_a_hash_is_its_formula(ids, salt, sizes, dtype):
    got = hash_experts(torch.tensor(ids, dtype=dtype), salt, *sizes)
    assert got.tolist() == [by_hand(token, salt, *sizes) for token in ids]
    assert got.dtype == torch.int64


def test_a_hash_is_the_same_everywhere():
    assert hash_experts(torch.arange(4).view(2, 2), 982451653, 8, 2).tolist() == [[[6, 5], [2, 3]], [[5, 6], [0, 1]]]


def test_mix_is_one_to_one():
    x = torch.arange(2**16)
    for offset in (0, 2**32 - 2**16, 0x12345678):
        y = mix(x + offset)
        assert y.unique().numel() == len(x)
        assert y.min() >= 0
        assert y.max() < 2**32


@pytest.mark.parametrize("salt", [0, 1, 982451653, -5])
def test_every_ordered_choice_is_equally_likely(salt):
    """Chi-square over the 4 * 3 ordered pairs, 11 degrees of freedom: beyond 40 once in 30,000 fair draws."""
    n = 60_000
    pairs = hash_experts(torch.arange(n), salt, 4, 2)
    found = (4 * pairs[:, 0] + pairs[:, 1]).bincount(minlength=16)
    seen = torch.tensor([found[4 * a + b] for a, b in permutations(range(4), 2)])
    assert seen.sum() == n  # never the same expert twice
    assert ((seen - n / 12) ** 2 / (n / 12)).sum() < 40


def test_salts_and_neighbouring_tokens_are_independent():
    """Two choices of one expert in 8 agree for an eighth of 50,000 tokens, within 5 standard deviations."""
    first = [hash_experts(torch.arange(50_000), salt, 8, 1)[:, 0] for salt in (0, 1, 2**32)]
    shifted = [first[0].roll(n) for n in (1, 2, 8, 256)]
    for other in (*first[1:], *shifted):
        assert abs((first[0] == other).double().mean() - 1 / 8) < 5 * math.sqrt(7 / 64 / 50_000)


def test_groups_outside_the_limit_are_out():
    choice = torch.tensor([[0.9, 0.0, 0.6, 0.5, 0.1, 0.2]])
    out = -math.inf
    assert within_groups(choice, 3, 1, best=1).isinf().tolist() == [[False, False, True, True, True, True]]
    assert within_groups(choice, 3, 1, best=2).tolist() == [[out, out, pytest.approx(0.6), 0.5, out, out]]
    assert within_groups(choice, 3, 2, best=2).isinf().tolist() == [[False, False, False, False, True, True]]
    assert within_groups(choice, 6, 2, best=2).isinf().tolist() == [[False, True, False, True, True, True]]

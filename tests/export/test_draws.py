import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from eulerstack.export.draws import CHUNK, Planned, chunk
from eulerstack.modeling.initial import Constant, Normal, Sampled

UNIT = NormalDist()


def values(tensor: Planned, seed: int = 0) -> torch.Tensor:
    """The whole tensor, flat, in its own dtype."""
    bits = np.concatenate([chunk(tensor, seed, n) for n in range(tensor.chunks)])
    return torch.from_numpy(bits).view(tensor.dtype)


def normal_cdf(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + torch.erf(torch.from_numpy(x) / math.sqrt(2)).numpy())


def distance(sample: np.ndarray, cdf) -> float:
    """Kolmogorov-Smirnov: the largest gap between the distribution of the sample and `cdf`."""
    x = np.sort(sample)
    expected, n = cdf(x), len(x)
    return max((expected - np.arange(n) / n).max(), (np.arange(1, n + 1) / n - expected).max())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("std", [0.02, 1 / math.sqrt(3072)])
def test_normal_has_its_mean_deviation_and_shape(dtype, std):
    n = CHUNK + 12_345
    tensor = Planned("w", (n,), dtype, Normal(std))
    x = values(tensor).double().numpy() / std
    assert len(x) == n
    assert abs(x.mean()) < 4 / math.sqrt(n)
    assert abs(x.std() - 1) < 4 / math.sqrt(2 * n) + (2e-4 if dtype == torch.bfloat16 else 0)
    assert abs((x**4).mean() - 3) < 4 * math.sqrt(96 / n)
    # Rounding to 8 bits puts a step of up to 2**-9 |x| on either side of a value: at most 2**-9 * 0.242 of the mass.
    rounding = {torch.bfloat16: 2**-9 * 0.25, torch.float16: 2**-12 * 0.25}.get(dtype, 0.0)
    assert distance(x, normal_cdf) < 1.95 / math.sqrt(n) + 1 / 65536 + rounding  # 0.1 % level
    assert 4.0 < abs(x).max() < 4.5


def test_truncated_normal_is_cut_at_two_deviations():
    n = 400_003
    x = values(Planned("w", (n,), torch.float32, Normal(0.5, truncated=True))).double().numpy() / 0.5
    low = UNIT.cdf(-2)
    assert abs(x).max() <= 2
    assert distance(x, lambda v: (normal_cdf(v) - low) / (1 - 2 * low)) < 1.95 / math.sqrt(n) + 1 / 65536
    inside = 1 - 4 * UNIT.pdf(2) / (1 - 2 * low)  # variance of a normal cut at 2
    assert abs(x.var() - inside) < 4 * inside * math.sqrt(2 / n)


def test_neighbours_are_not_correlated():
    x = values(Planned("w", (2 * CHUNK,), torch.float32, Normal(1.0))).double()
    for lag in (1, 2, 3, 4, 64, 65536, CHUNK):
        pairs = x[:-lag] * x[lag:]
        assert abs(pairs.mean().item()) < 4.5 / math.sqrt(len(pairs)), lag


def test_a_chunk_depends_on_seed_name_and_number_alone():
    def first(name="w", seed=0, n=0, shape=(2 * CHUNK,), std=1.0):
        return chunk(Planned(name, shape, torch.float32, Normal(std)), seed, n)[:1000].tolist()

    base = first()
    assert first() == base
    assert first(shape=(1000,)) == base
    assert [first(name="v") != base, first(seed=1) != base, first(n=1) != base] == [True] * 3
    assert first(seed=2**63) != base


def test_sampled_gets_uniform_numbers_of_its_shape():
    seen = []

    def of(uniform):
        seen.append(uniform)
        return uniform.log1p()

    tensor = Planned("dt_bias", (97, 1001), torch.float32, Sampled(of))
    got = values(tensor)
    (uniform,) = seen
    assert uniform.shape == (97, 1001)
    assert uniform.dtype == torch.float32
    assert (uniform >= 0).all()
    assert (uniform < 1).all()
    assert distance(uniform.double().flatten().numpy(), lambda v: v) < 1.95 / math.sqrt(uniform.numel())
    assert torch.equal(got, uniform.log1p().flatten())


def test_sampled_may_ignore_the_numbers_and_broadcast():
    rule = Sampled(lambda u: torch.arange(1, 4.0).log())
    got = values(Planned("A_log", (2, 3), torch.bfloat16, rule))
    assert torch.equal(got, torch.arange(1, 4.0).log().repeat(2).bfloat16())


@pytest.mark.parametrize(("dtype", "value"), [(torch.bfloat16, 1.0), (torch.int64, 7), (torch.bool, True)])
def test_constant(dtype, value):
    got = values(Planned("c", (CHUNK + 3,), dtype, Constant(value)))
    assert got.dtype == dtype
    assert got.shape == (CHUNK + 3,)
    assert (got == value).all()


def test_a_scalar_has_one_element():
    assert values(Planned("s", (), torch.float32, Constant(2.5))).tolist() == [2.5]

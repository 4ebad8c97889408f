"""Fake quantisation: exact grids, scales, and gradients that pass straight through."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eulerstack.modeling.op_fake_quant import FORMATS, FP4_BLOCK, fake_quantise, quantised, round_to_float

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()


def numbers(rows: int, width: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    spread = torch.randn(rows, 1, generator=g, dtype=torch.float64).mul(6).exp()
    return (torch.randn(rows, width, generator=g, dtype=torch.float64) * spread).to(dtype)


@given(st.floats(-600, 600, width=32))
@settings(max_examples=300, deadline=None)
def test_rounding_to_e4m3_is_the_cast_of_torch(value):
    x = torch.tensor([value, value / 2**13, value / 2**17], dtype=torch.float32)
    assert torch.equal(round_to_float(x, 3, -6, 448.0), x.clamp(-448, 448).to(torch.float8_e4m3fn).float())


def test_every_number_of_e4m3_and_every_tie_between_two():
    grid = E4M3[E4M3.isfinite()].unique()
    assert torch.equal(round_to_float(grid, 3, -6, 448.0), grid)
    ties = (grid[1:] + grid[:-1]) / 2
    assert torch.equal(round_to_float(ties, 3, -6, 448.0), ties.float().to(torch.float8_e4m3fn).double())


def test_every_number_of_e2m1_and_every_tie_between_two():
    grid = torch.tensor([-v for v in reversed(E2M1[1:])] + E2M1)
    assert torch.equal(round_to_float(grid, 1, 0, 6.0), grid)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert round_to_float(ties, 1, 0, 6.0).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert round_to_float(torch.tensor([7.9, -100.0]), 1, 0, 6.0).tolist() == [6.0, -6.0]


@pytest.mark.parametrize("width", [1, 31, 32, 33, 70])
def test_fp4_is_the_nearest_of_a_table_times_a_power_of_two_for_32_numbers(width):
    x = numbers(5, width)
    got = quantised(x, "fp4")
    grid = torch.tensor([-v for v in reversed(E2M1[1:])] + E2M1, dtype=torch.float64)
    for row in range(5):
        for at in range(0, width, FP4_BLOCK):
            block, answer = x[row, at : at + FP4_BLOCK], got[row, at : at + FP4_BLOCK]
            scale = 2.0 ** (torch.floor(torch.log2(block.abs().max())) - 2)
            distance = (block / scale).clamp(-6, 6)[:, None] - grid
            assert torch.equal(answer / scale, grid[distance.abs().argmin(1)])


def test_fp8_and_int8_have_one_scale_for_each_row():
    x = numbers(7, 40)
    top = x.abs().amax(1, keepdim=True)
    want = (x / (top / 448)).float().to(torch.float8_e4m3fn).double() * (top / 448)
    assert (quantised(x, "fp8") - want).abs().max() <= 1e-12 * top.max()
    steps = quantised(x, "int8") / (top / 127)
    assert (steps - steps.round()).abs().max() < 1e-9
    assert (steps.abs().amax(1) - 127).abs().max() < 1e-9
    assert ((quantised(x, "int8") - x).abs() <= top / 254 * (1 + 1e-9)).all()


def test_plain_formats_are_casts():
    x = numbers(4, 9)
    assert torch.equal(quantised(x, "bf16"), x.bfloat16().double())
    assert torch.equal(quantised(x, "fp32"), x.float().double())


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_quantised_stays(dtype):
    once = quantised(numbers(6, 45), dtype)
    assert (quantised(once, dtype) - once).abs().max() <= 1e-12 * once.abs().max()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_and_tiny_numbers_and_every_dtype(dtype, kind):
    x = torch.zeros(2, 37, dtype=kind)
    x[1, 3] = torch.finfo(kind).tiny
    got = quantised(x, dtype)
    assert got.dtype == kind
    assert torch.isfinite(got).all()
    assert (got[0] == 0).all()
    assert quantised(torch.zeros(3, 0, 5), dtype).shape == (3, 0, 5)


@pytest.mark.parametrize("to", ["fp4", "fp8", "bf16", "fp32"])
def test_what_it_is_scaled_back_to_rounds_again(to):
    x = numbers(5, 48)
    assert torch.equal(fake_quantise(x, "int8", to), quantised(quantised(x, "int8"), to))
    assert not torch.equal(fake_quantise(x, "int8", to), fake_quantise(x, "int8"))


def test_fp4_fits_into_fp8_and_bf16():
    """Numbers of one block need no rounding in a wider format."""
    x = numbers(5, FP4_BLOCK)
    assert torch.equal(fake_quantise(x, "fp4", "bf16"), fake_quantise(x, "fp4"))


@pytest.mark.parametrize("dtype", FORMATS)
def test_gradients_pass_straight_through(dtype):
    x, g = numbers(3, 34).requires_grad_(), numbers(3, 34, 1)
    y = fake_quantise(x, dtype, "bf16")
    y.backward(g)
    assert torch.equal(x.grad, g)
    assert torch.equal(y.detach(), quantised(quantised(x.detach(), dtype), "bf16"))


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="int4"):
        fake_quantise(torch.zeros(2), "int4")

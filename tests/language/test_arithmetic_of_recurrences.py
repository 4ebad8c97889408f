"""FLOPs of the mixers that are more than products: their equations, token by token, with numbers that count."""

import math
from pathlib import Path
from runpy import run_path

import pytest
import torch
from torch import nn

CASES = run_path(str(Path(__file__).with_name("cases.py")))
DIMS, OPTIONS = CASES["DIMS"], CASES["CASES"]
block, module, context, counted = (CASES[name] for name in ("block", "module", "context", "counted"))


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


@pytest.mark.parametrize("options", OPTIONS["mamba"], ids=str)
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


@pytest.mark.parametrize("options", OPTIONS["ttt_layer"], ids=str)
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


@pytest.mark.parametrize("options", OPTIONS["retnet"], ids=str)
def test_flops_of_retention(options):
    part = block("mixer", "retnet", options)
    linear = sum(2 * m.weight.numel() for m in module("mixer", part).modules() if isinstance(m, nn.Linear))
    Number.done = 0
    retention_step(DIMS.n_heads, DIMS.head_dim, 2 * DIMS.head_dim)
    assert part.flops(DIMS, 1) == part.flops(DIMS, 99) == linear + Number.done


@pytest.mark.parametrize("length", [2, 5, 23])
@pytest.mark.parametrize("options", OPTIONS["hyena"], ids=str)
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

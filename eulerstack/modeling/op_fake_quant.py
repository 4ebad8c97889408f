"""Fake quantisation: numbers rounded to the grid of a narrow format and scaled back, with straight-through gradients.

    fp4   e2m1 in blocks of 32 along the last axis that share a power of two (MXFP4: Open Compute Project 2023,
          Microscaling Formats 1.0, sections 5.2 and 6.3), 0 0.5 1 1.5 2 3 4 6 and their negatives times the power
    fp8   e4m3 (up to 448), one scale per row of the last axis, its largest magnitude / 448
    int8  -127 to 127, one scale per row, its largest magnitude / 127
    bf16, fp32   that format itself

The gradient is that of the identity (Bengio et al. 2013, section 4; Jacob et al. 2018, section 3). Whatever the input's
dtype, scales and rounding are in float32, or float64 for float64.
"""

import torch
from torch.nn import functional as F

from .op_precision import wide

FP4_BLOCK = 32
FORMATS = ("fp4", "fp8", "int8", "bf16", "fp32")


class _StraightThrough(torch.autograd.Function):
    """The quantised value forward, the untouched gradient backward: x + (q - x) would round a second time."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, dtype: str, dequant_to: str | None) -> torch.Tensor:
        q = quantised(x, dtype)
        return q if dequant_to is None else quantised(q, dequant_to)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple:
        return gradient, None, None


def fake_quantise(x: torch.Tensor, dtype: str, dequant_to: str | None = None) -> torch.Tensor:
    """`x` [..., R] rounded to `dtype`, then to `dequant_to` if given, in the shape and dtype of `x`.

    Raises ValueError for a format that is not one of FORMATS.
    """
    return _StraightThrough.apply(x, dtype, dequant_to)


def quantised(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """`x` [..., R] on the grid of `dtype`, without a gradient of its own."""
    if dtype not in FORMATS:
        raise ValueError(f"unknown format {dtype!r}; one of {', '.join(FORMATS)}")
    if dtype in ("bf16", "fp32"):
        return x.to(torch.bfloat16 if dtype == "bf16" else torch.float32).to(x.dtype)
    return {"fp4": _mxfp4, "fp8": _fp8, "int8": _int8}[dtype](wide(x)).to(x.dtype)


def round_to_float(x: torch.Tensor, mantissa: int, least: int, largest: float) -> torch.Tensor:
    """`x` at the nearest number with `mantissa` bits after the point, ties to even, up to `largest` in magnitude.

    `least` is the exponent of the smallest normal number; below it the grid stays as fine (subnormals).
    """
    exponent = torch.frexp(x).exponent - 1
    step = torch.ldexp(torch.ones_like(x), exponent.clamp(min=least) - mantissa)
    return (torch.round(x / step) * step).clamp(-largest, largest)


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax(-1, keepdim=True)


def _mxfp4(x: torch.Tensor) -> torch.Tensor:
    """A block's power of two puts its largest number in [4, 8); what is above 6 then becomes 6."""
    width = x.shape[-1]
    blocks = F.pad(x, (0, -width % FP4_BLOCK)).unflatten(-1, (-1, FP4_BLOCK))
    exponent = (torch.frexp(_largest(blocks)).exponent - 3).clamp(min=-126)  # a shared scale has eight bits
    scale = torch.ldexp(torch.ones_like(blocks[..., :1]), exponent)
    return (round_to_float(blocks / scale, 1, 0, 6.0) * scale).flatten(-2)[..., :width]


def _fp8(x: torch.Tensor) -> torch.Tensor:
    scale = _scale(_largest(x), 448.0)
    return round_to_float(x / scale, 3, -6, 448.0) * scale


def _int8(x: torch.Tensor) -> torch.Tensor:
    scale = _scale(_largest(x), 127.0)
    return torch.round(x / scale).clamp(-127, 127) * scale


def _scale(largest: torch.Tensor, top: float) -> torch.Tensor:
    """What `top` stands for; rows of zeros stay zeros."""
    return torch.where(largest > 0, largest / top, 1.0)

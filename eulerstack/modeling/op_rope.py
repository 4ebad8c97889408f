"""Rotary position embedding (Su et al. 2021, equation 34, in the half-split layout) and its length scalings.

Angles are computed in each forward pass, in float32 (float64 for a float64 model), so no buffer can be lost on load.
B batch, T tokens, H heads, D head dim, R the first part of D that rotates.
"""

import math
from collections.abc import Callable

import torch

from .context import Context
from .op_precision import at_least_float32


def rotary(
    config, context: Context, positions: torch.Tensor, head_dim: int, dtype: torch.dtype, name, *, whole: bool = False
):
    """cos and sin [B, T, R] in `dtype` for `positions` [B, T], each pair's twice, the first sin with a minus sign, as
    `rotate` multiplies them; remembered under `name` for the other layers.

    With `whole` all of `head_dim` rotates, whatever the model's share of a head is.
    """
    key = ("rotary", name, head_dim, dtype, whole)
    if key not in context.memo:
        exact = at_least_float32(dtype)
        frequencies, factor = inverse_frequencies(config, head_dim, context.key_positions.max() + 1, exact, whole=whole)
        angles = positions[..., None].to(exact) * frequencies.to(positions.device)
        cos, sin = angles.cos() * factor, angles.sin() * factor
        context.memo[key] = torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)
    return context.memo[key]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Rotate the pairs (x_i, x_{i + R/2}) of the R features of `x` [B, T, H, D] from `start` on."""
    width = cos.shape[-1]
    if x.shape[-1] > width:
        still, turned, rest = x.split((start, width, x.shape[-1] - start - width), -1)
        return torch.cat((still, rotate(turned, cos, sin), rest), -1)
    return torch.addcmul(x * cos[:, :, None], x.roll(width // 2, -1), sin[:, :, None])


def inverse_frequencies(
    config, head_dim: int, length: torch.Tensor, dtype: torch.dtype, *, whole: bool = False
) -> tuple[torch.Tensor, float]:
    """Angle per position of each pair, [R / 2] in radians, and the factor on cos and sin (1 but for yarn).

    `length` is the number of places in use; only `dynamic` looks at it. Raises ValueError for an unknown `rope_type`.
    """
    rope = config.rope_parameters
    if rope["rope_type"] not in _SCALINGS:
        raise ValueError(f"unknown rope_type {rope['rope_type']!r}; one of {', '.join(sorted(_SCALINGS))}")
    dim = head_dim if whole else int(head_dim * rope.get("partial_rotary_factor", 1.0))
    exponents = torch.arange(0, dim, 2, dtype=dtype, device=length.device) / dim
    return _SCALINGS[rope["rope_type"]](rope, exponents, dim, config.max_position_embeddings, length)


def _default(rope, exponents, dim, trained, length):
    return 1.0 / rope["rope_theta"] ** exponents, 1.0


def _linear(rope, exponents, dim, trained, length):
    """Positions divided by the factor (Chen et al. 2023, equation 4)."""
    return 1.0 / rope["rope_theta"] ** exponents / rope["factor"], 1.0


def _dynamic(rope, exponents, dim, trained, length):
    """NTK-aware: beyond the trained length the base grows with the length in use (Peng et al. 2023, appendix B.2)."""
    longest = length.clamp(min=trained).to(exponents.dtype)
    growth = rope["factor"] * longest / trained - (rope["factor"] - 1)
    return 1.0 / (rope["rope_theta"] * growth ** (dim / (dim - 2))) ** exponents, 1.0


def _yarn(rope, exponents, dim, trained, length):
    """NTK by parts: slow pairs are interpolated, fast ones kept, a ramp between (Peng et al. 2023, section 3.2)."""
    original = rope.get("original_max_position_embeddings") or trained
    factor = rope.get("factor") or trained / original

    def pair_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    low, high = pair_of(rope.get("beta_fast") or 32), pair_of(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    pairs = torch.arange(dim // 2, dtype=exponents.dtype, device=exponents.device)
    ramp = ((pairs - low) / (high - low or 0.001)).clamp(0, 1)
    fast = 1.0 / rope["rope_theta"] ** exponents
    return fast / factor * ramp + fast * (1 - ramp), _yarn_temperature(rope, factor)


def _magnitude(factor: float, scale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _yarn_temperature(rope, factor: float) -> float:
    """The factor on cos and sin (Peng et al. 2023, equation 22), as DeepSeek's `mscale` fields refine it."""
    if rope.get("attention_factor") is not None:
        return rope["attention_factor"]
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return _magnitude(factor, rope["mscale"]) / _magnitude(factor, rope["mscale_all_dim"])
    return _magnitude(factor)


def scale_of_decoupled_heads(config) -> float:
    """The factor on the softmax scale of heads of which a part rotates: what yarn's `mscale_all_dim` gives the whole
    head, squared for q and k (DeepSeek-V2's reference code, `softmax_scale`); 1 without it."""
    rope = config.rope_parameters if config.positional == "rope" else {}
    return _magnitude(rope["factor"], rope["mscale_all_dim"]) ** 2 if rope.get("mscale_all_dim") else 1.0


def _llama3(rope, exponents, dim, trained, length):
    """Wavelengths beyond original / low_freq_factor are stretched, below original / high_freq_factor kept, with a
    smooth passage between (Llama 3.1's reference code, `apply_scaling`)."""
    original = rope.get("original_max_position_embeddings") or trained
    slow, fast = rope["low_freq_factor"], rope["high_freq_factor"]
    frequencies = 1.0 / rope["rope_theta"] ** exponents
    turns = original * frequencies / (2 * math.pi)  # full turns within the original context
    kept = ((turns - slow) / (fast - slow)).clamp(0, 1)
    return (1 - kept) * frequencies / rope["factor"] + kept * frequencies, 1.0


_SCALINGS: dict[str, Callable] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}

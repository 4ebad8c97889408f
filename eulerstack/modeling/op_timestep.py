"""The time step of a state-space layer: how it is formed from its logits, and how its parameters start.

B batch, T tokens.
"""

import math

import torch
from torch.nn import functional as F

from .op_precision import wide

STEP_MIN, STEP_MAX, STEP_FLOOR = 1e-3, 1e-1, 1e-4  # range of the first steps (Gu & Dao 2023, section 3.6)


def step_sizes(logits: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """Steps softplus(logits) `[B, T, *]`, at least float32, and 0 on padding, where a step of 0 holds the state."""
    steps = F.softplus(wide(logits))
    return steps if keep is None else steps.masked_fill(~keep[..., None], 0.0)


def step_bias(uniform: torch.Tensor) -> torch.Tensor:
    """Biases whose softplus is log-uniform in [STEP_MIN, STEP_MAX], from uniform numbers in [0, 1) of any shape."""
    steps = torch.exp(uniform * math.log(STEP_MAX / STEP_MIN) + math.log(STEP_MIN)).clamp(min=STEP_FLOOR)
    return steps + torch.log(-torch.expm1(-steps))  # the inverse of softplus


def log_counts(uniform: torch.Tensor) -> torch.Tensor:
    """log(1), log(2), ... along the last axis (S4D-real, Gu et al. 2022, section 3.2); only the shape is read."""
    counts = torch.arange(1, uniform.shape[-1] + 1, dtype=torch.float32, device=uniform.device)
    return counts.log().expand_as(uniform)

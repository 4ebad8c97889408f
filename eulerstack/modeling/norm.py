"""Normalisation over the last axis. Statistics in float32 (float64 stays), result in the dtype of the input.

B batch, T tokens, D features.
"""

import torch
from torch import nn
from torch.nn import functional as F

from .initial import Constant, Init, Rule
from .op_precision import wide


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * w (Zhang & Sennrich 2019, equation 4). Input and output [..., D].

    With `unit_offset` the stored weight is w - 1, as Gemma stores it.
    """

    def __init__(self, d: int, eps: float, unit_offset: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d) if unit_offset else torch.ones(d))
        self.eps, self.unit_offset = eps, unit_offset

    def initial(self, init: Init) -> dict[str, Rule]:
        return {"weight": Constant(0.0 if self.unit_offset else 1.0)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == self.weight.dtype and x.dtype in (torch.float32, torch.float64):  # the same numbers in one kernel
            weight = 1.0 + self.weight if self.unit_offset else self.weight
            return F.rms_norm(x, weight.shape, weight, self.eps)
        y = wide(x)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        if self.unit_offset:
            return (y * (1.0 + self.weight.to(y.dtype))).to(x.dtype)
        return self.weight.to(x.dtype) * y.to(x.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) * w + b (Ba et al. 2016, equation 4). Input and output [..., D]."""

    def __init__(self, d: int, eps: float, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d)) if bias else None
        self.eps = eps

    def initial(self, init: Init) -> dict[str, Rule]:
        return {"weight": Constant(1.0)} | ({"bias": Constant(0.0)} if self.bias is not None else {})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), bias, self.eps)


def build_norm(d: int, eps: float, spec: dict) -> nn.Module:
    """The norm of a block: `spec` has `type` rmsnorm | layernorm, `unit_offset` and `bias`."""
    if spec["type"] == "rmsnorm":
        return RMSNorm(d, eps, spec["unit_offset"])
    if spec["type"] == "layernorm":
        return LayerNorm(d, eps, spec["bias"])
    raise ValueError(f"unknown norm {spec['type']!r}; one of rmsnorm, layernorm")

"""One layer with the same weights, applied several times: a composition, or the steps of an ODE solver.

Reference: Dehghani et al. 2019, Universal Transformers (discrete); Chen et al. 2018, Neural Ordinary Differential
Equations, and Li et al. 2022, ODE Transformer (euler, rk4). With L the layer and F(x) = L(x) - x its residual branch,

    discrete    x <- L(x)                                                        `steps` times
    ode_euler   x <- x + h F(x),                                   h = 1 / steps, `steps` times
    ode_rk4     x <- x + h/6 (k1 + 2 k2 + 2 k3 + k4),              the classical scheme of order four
                k1 = F(x), k2 = F(x + h/2 k1), k3 = F(x + h/2 k2), k4 = F(x + h k3)

Every evaluation of L has its own slot in the cache, since each sees other inputs.
"""

import torch
from torch import nn

from .norm import build_norm
from .walk import Walk

EVALUATIONS = {"discrete": 1, "ode_euler": 1, "ode_rk4": 4}


class Run(nn.Module):
    """`layer` is the index of the layer. With `output` token the result goes through a norm of its own (`norm`: its
    options), with hidden it is passed on as it is."""

    def __init__(self, config, parts: dict[str, type], *, layer: int, method: str, steps: int, output: str, norm: dict):
        super().__init__()
        self.layer, self.method, self.steps = layer, method, steps
        self.slots = steps * EVALUATIONS[method]
        self.croppable = True
        self.norm = build_norm(config.hidden_size, config.rms_norm_eps, norm) if output == "token" else None

    def forward(self, x: torch.Tensor, walk: Walk) -> torch.Tensor:
        """[B, T, D] or [B, T, n, D] -> the same shape."""
        for _ in range(self.steps):
            x = self._step(x, walk, 1.0 / self.steps)
        x = x if self.norm is None else self.norm(x)
        walk.see(self.layer, x)
        return x

    def _step(self, x: torch.Tensor, walk: Walk, h: float) -> torch.Tensor:
        if self.method == "discrete":
            return walk.layer(self.layer, x)
        k1 = self._branch(x, walk)
        if self.method == "ode_euler":
            return x + h * k1
        k2 = self._branch(x + h / 2 * k1, walk)
        k3 = self._branch(x + h / 2 * k2, walk)
        k4 = self._branch(x + h * k3, walk)
        return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def _branch(self, x: torch.Tensor, walk: Walk) -> torch.Tensor:
        return walk.layer(self.layer, x) - x

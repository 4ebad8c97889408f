"""How parameters start: rules, said once by each module and read twice.

`PreTrainedModel._init_weights` draws them with torch; the exporter draws them tensor by tensor without building the
model. A module with parameters of its own defines `initial(self, init) -> dict[str, Rule]`, one rule for each of its
direct parameters and persistent buffers, where `init` is the Init of the whole model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Normal:
    """Normal with mean 0; `truncated` cuts at two standard deviations."""

    std: float
    truncated: bool = False


@dataclass(frozen=True)
class Constant:
    value: float


@dataclass(frozen=True)
class Sampled:
    """A small tensor from uniform numbers in [0, 1): `of(uniform float32 of the parameter's shape) -> values`."""

    of: Callable[[torch.Tensor], torch.Tensor]


Rule = Normal | Constant | Sampled


@dataclass(frozen=True)
class Init:
    """The model's initialisation: `scheme` normal | truncated_normal | scaled_residual | mup, and its base `std`.

    scaled_residual divides the std of projections that write to the residual stream by sqrt(2 n_layers) (GPT-2,
    section 2.3); mup gives hidden matrices std 1 / sqrt(fan_in) (Tensor Programs V, table 3).
    """

    scheme: str
    std: float
    n_layers: int

    def matrix(self, fan_in: int, *, to_residual: bool = False) -> Normal:
        """The rule for a weight matrix that reads `fan_in` features."""
        if self.scheme == "mup":
            return Normal(1.0 / math.sqrt(fan_in))
        shrink = math.sqrt(2 * self.n_layers) if to_residual and self.scheme == "scaled_residual" else 1.0
        return Normal(self.std / shrink, truncated=self.scheme == "truncated_normal")

    def table(self) -> Normal:
        """The rule for an embedding table."""
        return Normal(self.std, truncated=self.scheme == "truncated_normal")


def rules_of(module: nn.Module, init: Init) -> dict[str, Rule]:
    """The rules for the direct parameters of `module`: its own `initial`, or what torch's stock layers get."""
    if hasattr(module, "initial"):
        return module.initial(init)
    if isinstance(module, nn.Linear):
        weight = init.matrix(module.in_features, to_residual=getattr(module, "to_residual", False))
        return {"weight": weight} | ({"bias": Constant(0.0)} if module.bias is not None else {})
    if isinstance(module, nn.Embedding):
        return {"weight": init.table()}
    return {}


def draw(tensor: torch.Tensor, rule: Rule) -> None:
    """Fill `tensor` in place by `rule`, through torch.nn.init, which transformers guards while it loads."""
    if isinstance(rule, Constant):
        nn.init.constant_(tensor, rule.value)
    elif isinstance(rule, Sampled):
        with torch.no_grad():
            tensor.copy_(rule.of(torch.rand(tensor.shape, dtype=torch.float32, device=tensor.device)))
    elif rule.truncated:
        nn.init.trunc_normal_(tensor, 0.0, rule.std, -2 * rule.std, 2 * rule.std)
    else:
        nn.init.normal_(tensor, 0.0, rule.std)

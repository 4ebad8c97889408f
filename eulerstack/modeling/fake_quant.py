"""Quantisation-aware training: which weights of a model are used as if they were stored in a narrow format.

The stored weights stay as they are; every forward pass, in training and in evaluation, uses their fake-quantised values
(op_fake_quant.py), with one scale for each output row, or for 32 of its numbers. Quantisable are the weights of linear
layers and the packed matrices of experts; tables, norms, convolutions, biases, routers, time steps and a head that is
tied to a table are not.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from .op_fake_quant import fake_quantise

PACKED = ("gate_up_proj", "down_proj")
HEAD = "lm_head.weight"


class QuantisedLinear(nn.Linear):
    """A linear layer under the names, and with the parameters, of the one it was."""

    formats: tuple[str, str | None]

    @property
    def weight_in_use(self) -> torch.Tensor:
        """The weight as forward passes see it; code that multiplies by it itself takes this one (op_linear.py)."""
        return fake_quantise(self.weight, *self.formats)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight_in_use, self.bias)


def quantise(model: nn.Module, spec: dict, prefix: str = "") -> None:
    """Change `model` in place: `spec` has `dtype`, `dequant_to`, and `scope`, patterns of parameter names.

    Without patterns all quantisable weights but the head's. `prefix` is where `model` stands in the whole model, as
    which it may be loaded alone. Raises ValueError for a pattern that matches none in the whole; twice is once.
    """
    found = {f"{prefix}{name}": (module, own) for name, module, own in quantisable(model)}
    scope = spec["scope"] or ["model.*", "mtp.*"]
    idle = [pattern for pattern in spec["scope"] if not any(fnmatchcase(name, pattern) for name in found)]
    if idle and not prefix:
        raise ValueError(f"no quantisable weight is named {', '.join(map(repr, idle))}")
    formats = (spec["dtype"], spec["dequant_to"])
    for name, (module, own) in found.items():
        if any(fnmatchcase(name, pattern) for pattern in scope):
            _change(module, own, formats)


def quantisable(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Names of parameters, each with its module and its name there."""
    tied = HEAD if model.config.tie_word_embeddings else None
    for path, module in model.named_modules():
        if hasattr(module, "weight_filters"):
            yield from ((f"{path}.{own}", module, own) for own in PACKED)
        elif type(module) in (nn.Linear, QuantisedLinear) and f"{path}.weight" != tied:
            yield f"{path}.weight", module, "weight"


def _change(module: nn.Module, own: str, formats: tuple[str, str | None]) -> None:
    if own == "weight":
        module.__class__ = QuantisedLinear  # so parameters, hooks and attributes stay the very same objects
        module.formats = formats
    else:
        dtype, dequant_to = formats
        module.weight_filters[own] = partial(fake_quantise, dtype=dtype, dequant_to=dequant_to)

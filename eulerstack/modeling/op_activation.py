"""The activations a feed-forward layer may name."""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F


def relu2(x: torch.Tensor) -> torch.Tensor:
    """Squared ReLU, elementwise (So et al. 2021, Primer, section 3.2)."""
    return F.relu(x).square()


_ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": relu2,
    "swiglu": F.silu,
    "geglu": F.gelu,
}


def activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The elementwise function of `name`; shape and dtype stay.

    In a gated layer, `down(act(gate(x)) * up(x))`, it acts on the gate: `swiglu` is SiLU and `geglu` the exact GELU
    (Shazeer 2020, GLU Variants Improve Transformer, equation 6), every other name is itself. A plain layer,
    `down(act(up(x)))`, has no gate: the language refuses `swiglu` and `geglu` there.

    Raises ValueError for a name that is not in the table.
    """
    if name not in _ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; one of {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[name]

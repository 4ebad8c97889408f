"""What acts inside a feed-forward layer: an activation in a plain one, a gate on what goes up in a gated one."""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F

# Of swiglu_clamped: the gain in the sigmoid, and what clamps gate and up (OpenAI 2025, gpt-oss, reference code).
GAIN, LIMIT = 1.702, 7.0


def relu2(x: torch.Tensor) -> torch.Tensor:
    """Squared ReLU, elementwise (So et al. 2021, Primer, section 3.2)."""
    return F.relu(x).square()


def swiglu_clamped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """(up + 1) * gate * sigmoid(1.702 gate) of a gate cut off above 7 and an up kept within -7 and 7.

    Reference: OpenAI 2025, gpt-oss-120b & gpt-oss-20b Model Card, section 2.2, and `swiglu` of its reference code.
    """
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    gate = gate * torch.sigmoid(GAIN * gate)
    return torch.addcmul(gate, gate, up)


def _gate(act: Callable[[torch.Tensor], torch.Tensor], gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return act(gate) * up


_ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": relu2,
}
_GATES = {name: partial(_gate, act) for name, act in _ACTIVATIONS.items()}
_GATES |= {"swiglu": partial(_gate, F.silu), "geglu": partial(_gate, F.gelu), "swiglu_clamped": swiglu_clamped}


def activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The elementwise function of a plain layer, `down(act(up(x)))`; shape and dtype stay.

    Raises ValueError for a name that is not in the table, as a name that needs a gate.
    """
    return _of(_ACTIVATIONS, name)


def gating(name: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The elementwise function of (gate, up) of a gated layer, `down(gated(gate(x), up(x)))`; shape and dtype stay.

    `swiglu` is SiLU of the gate times up, `geglu` the exact GELU of it (Shazeer 2020, GLU Variants Improve
    Transformer, equation 6), and the name of an activation is that of the gate times up.
    Raises ValueError for a name that is not in the table.
    """
    return _of(_GATES, name)


def _of(table: dict[str, Callable], name: str) -> Callable:
    if name not in table:
        raise ValueError(f"unknown activation {name!r}; one of {', '.join(sorted(table))}")
    return table[name]

"""Linear layers whose matrix is used without calling them: in another order of products, or in another precision."""

import torch
from torch import nn


def matrix_of(linear: nn.Module) -> torch.Tensor | None:
    """The weight that a call of `linear` multiplies by, where that and a bias are all that a call of it means; None if
    an adapter, a quantiser, a hook or an offloader stands around it."""
    if linear._forward_pre_hooks or linear._forward_hooks or "forward" in vars(linear):
        return None
    return linear.weight if type(linear) is nn.Linear else getattr(linear, "weight_in_use", None)

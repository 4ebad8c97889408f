"""Cross entropy over tokens that may weigh differently.

N tokens in any shape, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from .op_precision import wide

IGNORED = -100


def token_loss(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None = None, items=None
) -> torch.Tensor:
    """sum_n w_n CE_n / sum_n w_n over the tokens whose target is not -100, a scalar; 0 if there are none.

    logits [..., V], targets [...] int, weights [...] or None for ones. With `items` the sum is divided by it instead,
    so that the calls of an accumulated step add up to one. Computed in float32 or wider.
    """
    logits = wide(logits).flatten(0, -2)
    flat = targets.flatten().to(logits.device)
    losses = F.cross_entropy(logits, flat, ignore_index=IGNORED, reduction="none")
    counted = (flat != IGNORED).to(logits.dtype)
    if weights is not None:
        counted = counted * weights.flatten().to(counted)
    total = (counted * losses).sum()
    if items is not None:
        return total / (items.to(total.device) if torch.is_tensor(items) else items)
    mass = counted.sum()
    return total / torch.where(mass > 0, mass, 1.0)


@dataclass(frozen=True)
class Targets:
    """What is predicted: `labels` [B, T] and their `weights` [B, T] or None, `logits` of hidden states, and `items`,
    what the loss is divided by in place of the tokens that count."""

    labels: torch.Tensor
    weights: torch.Tensor | None
    logits: Callable[[torch.Tensor], torch.Tensor]
    items: torch.Tensor | int | None = None

    def loss(self, hidden: torch.Tensor, ahead: int, counts: torch.Tensor | None = None) -> torch.Tensor:
        """Of `hidden` [B, T - ahead, D], which predicts the labels that lie `ahead`, where `counts` is True."""
        labels = self.labels[:, ahead:]
        if counts is not None:
            labels = labels.masked_fill(~counts.to(labels.device), IGNORED)
        weights = None if self.weights is None else self.weights[:, ahead:]
        return token_loss(self.logits(hidden), labels, weights, self.items)

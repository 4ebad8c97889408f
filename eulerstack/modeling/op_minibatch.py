"""Mini-batches of tokens that do not depend on how a sequence is cut into calls.

A document is cut, from its first real token on, into mini-batches of `size` tokens. A call sees a stretch of it: its
first mini-batch may have been begun by earlier calls, its last one may be finished by later ones. A token always sits
in the same slot of the same mini-batch; padding sits in none.

B batch, T tokens, N mini-batches of this call (the most that a row needs), Z = `size`.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from .context import Context


@dataclass(frozen=True)
class Arrangement:
    """Where each real token of a call sits. Slots filled by earlier calls, and not yet filled, are empty.

    A mini-batch is complete after this call iff its last slot is filled in it: `mask[..., -1]`.
    """

    slots: torch.Tensor  # [B, N, Z] int: the token in each slot, or -1
    fresh: torch.Tensor  # [B, N] bool: a document starts, so the state resets before this mini-batch
    filled: torch.Tensor  # [B] int: tokens of the open mini-batch after the call, 0 ... Z - 1
    places: torch.Tensor  # [B, T] int: n Z + z of each token, or N Z on padding
    dense: bool  # every row is full from its first slot on, with neither padding nor borders

    @property
    def mask(self) -> torch.Tensor:
        """`[B, N, Z]` bool: the slots filled in this call."""
        return self.slots >= 0

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """`[B, T, *]` -> `[B, N, Z, *]`, zero in empty slots."""
        n, size = self.slots.shape[1:]
        features = x.flatten(2) if x.dim() > 2 else x[..., None]
        spare = n * size - x.shape[1] if self.dense else 1
        features = F.pad(features, (0, 0, 0, spare))
        if not self.dense:
            features = _rows(features, torch.where(self.mask, self.slots, x.shape[1]).flatten(1))
        return features.reshape(x.shape[0], n, size, *x.shape[2:])

    def scatter(self, y: torch.Tensor) -> torch.Tensor:
        """`[B, N, Z, *]` -> `[B, T, *]`, zero on padding."""
        features = y.flatten(3).flatten(1, 2) if y.dim() > 3 else y.flatten(1)[..., None]
        if self.dense:
            features = features[:, : self.places.shape[1]]
        else:
            features = _rows(F.pad(features, (0, 0, 0, 1)), self.places)
        return features.reshape(*self.places.shape, *y.shape[3:])


def arrange(context: Context, size: int, filled: torch.Tensor | None = None) -> Arrangement:
    """Seat the tokens of this call in mini-batches of `size`.

    `filled` `[B]` int, below `size`: tokens that earlier calls left in the open mini-batch of the document under way
    (None: 0). A document that starts on padding after the last real token leaves an empty fresh mini-batch behind.
    """
    b, t = context.positions.shape
    device = context.positions.device
    real = torch.ones(b, t, dtype=torch.bool, device=device) if context.keep is None else context.keep
    count = real.long().cumsum(1)
    begun = torch.zeros(b, 1, dtype=torch.long, device=device) if filled is None else filled[:, None].long()
    rank, carried = _ranks(context.starts, real, count, begun)

    opens = real & ((rank % size == 0) | (count == 1))
    number = opens.cumsum(1) - 1  # of the mini-batch, at real tokens
    hollow = torch.zeros_like(real[:, -1]) if context.starts is None else ~carried[:, -1] & (rank[:, -1] < 0)
    if context.starts is None:
        n = -(-(t + (size - 1 if filled is not None else 0)) // size)
    else:
        n = max(1, int((number[:, -1] + 1 + hollow).max()))

    places = torch.where(real, number * size + rank % size, n * size)
    tokens = torch.arange(t, device=device).expand(b, t)
    slots = _scattered(places, tokens, n * size, -1).unflatten(1, (n, size))
    fresh = torch.zeros(b, n, dtype=torch.bool, device=device)
    if context.starts is not None:
        first = real & (rank == 0) & ~carried
        fresh = _scattered(torch.where(first, number, n), first, n, False)
        fresh = fresh | (hollow[:, None] & (torch.arange(n, device=device) == number[:, -1:] + 1))
    dense = filled is None and context.keep is None and context.starts is None
    return Arrangement(slots, fresh, (rank[:, -1] + 1) % size, places, dense)


def _ranks(starts, real, count, begun) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of each token in its document, from 0, `[B, T]`, on padding that of the last real token before it or
    -1; and whether that document is the one under way before the call. Its `begun` `[B, 1]` tokens of an open
    mini-batch are counted as its first."""
    if starts is None:
        return count - 1 + begun, torch.ones_like(real)
    before = torch.where(starts, count - real.long(), 0).cummax(1).values  # real tokens ahead of the document
    carried = starts.cumsum(1) == 0
    return count - 1 - before + torch.where(carried, begun, 0), carried


def _scattered(places: torch.Tensor, values: torch.Tensor, length: int, blank) -> torch.Tensor:
    """`[B, length]`: `values` `[B, T]` at `places` `[B, T]`, `blank` elsewhere; what goes to `length` is dropped."""
    out = values.new_full((len(places), length + 1), blank)
    return out.scatter(1, places, values)[:, :length]


def _rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The rows `index` `[B, K]` of each `x` `[B, T, F]`."""
    offset = torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (index + offset).flatten()).unflatten(0, index.shape)

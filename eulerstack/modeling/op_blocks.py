"""Blocks of m consecutive real tokens of one document: where they lie, which are complete, and who sees what of them.

The n-th real token of a document (from 0) is in its block n // m, and block j is complete with token j m + m - 1.
Complete blocks of all documents of a row have entries, numbered through the row in the order of their completion.
Padding is not counted, so no result depends on it, nor on how a sequence is cut into calls or packed with others.

B batch, T tokens of this call, P past tokens, S = P + T, E = S // m slots for entries (at least as many as there are),
N new ones, K tokens held: the newest m - 1 of the past and those of the call. Rows that need no slots of their own
share one, so B may be 1.
"""

from dataclasses import dataclass

import torch

from .context import Context
from .op_mask import keys_of


@dataclass(frozen=True)
class Blocks:
    """`first` and `ready` bound the entries a query sees: first <= e < ready."""

    size: int
    past: int  # slots of entries that earlier calls left
    rank: torch.Tensor  # [B, T] int: number of the token in its document
    first: torch.Tensor  # [B, T] int: entries of the row before the token's document
    ready: torch.Tensor  # [B, T] int: entries of the row up to the token, itself included
    owner: torch.Tensor  # [B, S] int: the entry that the token belongs to, complete or not
    slots: int  # E
    new: int  # N
    begin: int  # where the new blocks begin among the K tokens held, if they lie there side by side
    tokens: torch.Tensor | None  # [B, N, m] int: where they lie otherwise
    order: torch.Tensor | None  # [B, E] int: places of all entries in (old, new); None: they are in order

    def visible(self, now: slice = slice(None)) -> torch.Tensor:
        """[B, C, E] bool: the complete blocks of the documents of the queries `now`."""
        entry = torch.arange(self.slots, device=self.rank.device)
        return (self.first[:, now, None] <= entry) & (entry < self.ready[:, now, None])

    def back(self, now: slice) -> torch.Tensor:
        """[B, C, E] int: tokens from the first one of a visible block to the queries `now`."""
        entry = torch.arange(self.slots, device=self.rank.device)
        return self.rank[:, now, None] - (entry - self.first[:, now, None]) * self.size

    def gather(self, held: torch.Tensor) -> torch.Tensor:
        """The tokens of the new blocks, [B, N, m, ...] of `held` [B, K, ...]."""
        if self.tokens is None:
            return held[:, self.begin : self.begin + self.new * self.size].unflatten(1, (self.new, self.size))
        return _take(held, self.tokens.flatten(1)).unflatten(1, self.tokens.shape[1:])

    def join(self, old: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        """All entries [B, E, ...]: `old` [B, past, ...] or None, and `new` [B, N, ...]. Spare slots hold anything."""
        both = new if old is None else torch.cat((old, new), 1)
        return both if self.order is None else _take(both, self.order)


def blocks_of(context: Context, size: int) -> Blocks:
    """The blocks of `size` tokens in this call; made once for all layers alike."""
    if ("blocks", size) not in context.memo:
        plain = context.key_keep is None and context.key_documents is None
        context.memo["blocks", size] = _side_by_side(context, size) if plain else _scattered(context, size)
    return context.memo["blocks", size]


def places(context: Context, blocks: Blocks) -> torch.Tensor:
    """[B, N] int: the places of the first tokens of the new blocks."""
    return blocks.gather(keys_of(context, blocks.size - 1).positions)[..., 0]


def _side_by_side(context: Context, size: int) -> Blocks:
    """Without padding or documents: everything follows from P and T."""
    past, t = context.past, context.positions.shape[1]
    rank = torch.arange(past + t, device=context.positions.device)[None]
    old, slots = past // size, (past + t) // size
    return Blocks(
        size=size,
        past=old,
        rank=rank[:, past:],
        first=torch.zeros_like(rank[:, past:]),
        ready=(rank[:, past:] + 1) // size,
        owner=rank // size,
        slots=slots,
        new=slots - old,
        begin=old * size - max(0, past - size + 1),
        tokens=None,
        order=None,
    )


def _scattered(context: Context, size: int) -> Blocks:
    past, t = context.past, context.positions.shape[1]
    keys = keys_of(context, None)
    keep = torch.ones_like(context.key_positions, dtype=torch.bool) if keys.keep is None else keys.keep
    count = keys.count.expand(keep.shape)
    rank = count - 1 - _at_borders(keys.documents, count - keep.long())
    done = keep & (rank % size == size - 1)
    ready = done.long().cumsum(1)
    first = _at_borders(keys.documents, ready - done.long())
    old = ready[:, past - 1 : past] if past else ready.new_zeros(len(ready), 1)
    slots, new = (past + t) // size, (min(past, size - 1) + t) // size
    entry = torch.arange(slots, device=rank.device)
    order = torch.where(entry < old, entry, entry - old + past // size).clamp(max=max(0, past // size + new - 1))
    return Blocks(
        size=size,
        past=past // size,
        rank=rank[:, past:],
        first=first[:, past:],
        ready=ready[:, past:],
        owner=first + rank // size,
        slots=slots,
        new=new,
        begin=0,
        tokens=_tokens(context, size, done[:, past:], new),
        order=order,
    )


def _at_borders(documents: torch.Tensor | None, values: torch.Tensor) -> torch.Tensor:
    """What the non-decreasing `values` [B, S] are where the document of each token begins, 0 for the first one."""
    if documents is None:
        return torch.zeros_like(values)
    border = documents[:, 1:] != documents[:, :-1]
    begun = torch.where(border, values[:, 1:], 0)
    return torch.cat((torch.zeros_like(values[:, :1]), begun), 1).cummax(1).values


def _tokens(context: Context, size: int, done: torch.Tensor, new: int) -> torch.Tensor:
    """[B, N, m] the places, among the K tokens held, of the blocks that end where `done` [B, T] is True, in order."""
    held = keys_of(context, size - 1)
    k = held.count.shape[1]
    ends = (~done).to(torch.uint8).argsort(dim=1, stable=True)[:, :new] + k - done.shape[1]
    back = torch.arange(1 - size, 1, device=done.device)
    if held.keep is None:
        return (ends[..., None] + back).clamp(min=0)
    real = (~held.keep).to(torch.uint8).argsort(dim=1, stable=True)
    number = (held.keep.long().cumsum(1) - 1).gather(1, ends)
    places = (number[..., None] + back).clamp(min=0)
    return real.gather(1, places.flatten(1)).view_as(places)


def _take(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """`x` [B, K, ...] at `places` [B, L] of axis 1."""
    index = places.view(*places.shape, *[1] * (x.dim() - 2))
    return x.gather(1, index.expand(-1, -1, *x.shape[2:]))

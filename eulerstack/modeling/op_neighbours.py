"""The nearest of the entries before a token: who may be seen, who is nearest, what is still held afterwards.

Entries are keys, values and whether they are there (`real`). Some come from earlier calls, the last T are the tokens of
this call; each belongs to a document and has a place in it, counted over what is there.

B batch, T tokens, S entries, C features of a key, D of a value.
"""

from dataclasses import dataclass

import torch

from .op_memory import unit
from .op_precision import own_precision, wide

Entries = dict[str, torch.Tensor]  # keys [B, S, C], values [B, S, D], real [B, S] bool
NEIGHBOURS = 8
ROUNDING = 16  # last digits of a cosine: a token that stands twice ties with itself however it was computed
NOWHERE, LATER = -1, -2  # documents of what is not there, and of what every document after the first starts with


@dataclass(frozen=True)
class Seats:
    """Where entries sit: `document` `[B, S]`, `place` `[B, S]`, and the `last` document `[B, 1]` of each row."""

    document: torch.Tensor
    place: torch.Tensor
    last: torch.Tensor

    def before(self, now: slice, past: slice, reach: int) -> torch.Tensor:
        """`[B, L, S']` bool: for the entries `now`, which of the entries `past` are of the same document and among the
        `reach` before."""
        distance = self.place[:, now, None] - self.place[:, None, past]
        return self.of(self.document[:, now, None], self.document[:, None, past]) & (distance > 0) & (distance <= reach)

    def newest(self, entries: Entries, size: int, *, in_order: bool) -> Entries:
        """The last `size` entries of each row's last document, in order, at the end. `in_order`: that document has all
        entries from its first one on."""
        if in_order:
            return {name: t[:, t.shape[1] - size :].clone() for name, t in entries.items()}
        stays = self.of(self.last, self.document)
        order = stays.to(torch.uint8).argsort(dim=1, stable=True)[:, stays.shape[1] - size :]
        taken = {name: _rows(t, order) for name, t in entries.items()}
        return taken | {"real": stays.gather(1, order)}

    @staticmethod
    def of(document: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
        return (owner == document) | ((owner == LATER) & (document > 0))


def seat(first: torch.Tensor, old: torch.Tensor, new: torch.Tensor, resets: torch.Tensor | None) -> Seats:
    """Seats of the entries of earlier calls and of the tokens, `real` of each `[B, *]`, where documents begin at
    `resets` `[B, T]`. If any does, `first`, what it starts with, comes before them."""
    count = new.cumsum(1)
    place = old.sum(1, keepdim=True) + count - 1
    if resets is None:
        document = torch.zeros_like(count)
        real, owners, places = [old, new], [_filled(old, 0), document], [old.cumsum(1) - 1, place]
    else:
        document = resets.cumsum(1)
        border = torch.where(resets, count - new.long(), 0).cummax(1).values
        place = torch.where(document == 0, place, first.sum(1, keepdim=True) + count - 1 - border)
        real, owners = [first, old, new], [_filled(first, LATER), _filled(old, 0), document]
        places = [first.cumsum(1) - 1, old.cumsum(1) - 1, place]
    owner = torch.where(torch.cat(real, 1), torch.cat(owners, 1), NOWHERE)
    return Seats(owner, torch.cat(places, 1), document[:, -1:])


def recall(q: torch.Tensor, entries: Entries, visible: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`[B, L, C]` -> `[B, L, D]`, float32 or wider: the values of the nearest `visible` `[B, L, S]` entries, weighed by
    the softmax of `scale` times the cosine of query and key. What ties with the last neighbour is one too; where
    nothing is visible the result is zero."""
    with own_precision(q.device):
        values = wide(entries["values"])
        if not visible.shape[-1]:
            return values.new_zeros(*q.shape[:2], values.shape[-1])
        likeness = unit(q) @ unit(entries["keys"]).mT * wide(scale)
        lowest = torch.finfo(likeness.dtype).min
        likeness = likeness.masked_fill(~visible, lowest)
        least = likeness.detach().topk(min(NEIGHBOURS, likeness.shape[-1])).values[..., -1:]
        near = visible & (likeness >= least - ROUNDING * torch.finfo(likeness.dtype).eps * wide(scale).detach().abs())
        return (likeness.masked_fill(~near, lowest).softmax(-1) * near) @ values


def _filled(like: torch.Tensor, value: int) -> torch.Tensor:
    return torch.full_like(like, value, dtype=torch.long)


def _rows(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(len(x), device=x.device)[:, None], order]

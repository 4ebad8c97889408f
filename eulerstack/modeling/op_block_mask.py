"""What a query of compressed attention sees: keys nearby, entries of blocks, keys of chosen blocks; with ALiBi.

All of it is made for a run of queries at a time, `now`, and for the keys that any of them can see, so that no mask is
as wide as the text where the reach is short.

B batch, T queries of the call, C of them now, S all tokens, K keys held, E entries, H heads, X keys of a group. Rows
that need no mask of their own share one, so B may be 1.
"""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from .context import Context
from .op_blocks import Blocks, blocks_of
from .op_mask import alibi_bias, keys_of


class Group(NamedTuple):
    """X keys of one kind, `keys` of those there are."""

    keys: slice
    seen: torch.Tensor  # [B, C, X] bool
    back: torch.Tensor  # [B, C, X] int: tokens from the key to the query
    nudge: torch.Tensor | None = None  # [B, C, X]: what is added to their logits


def reach_of(size: int, window: int | None) -> int:
    """How many past keys `near` can need."""
    return max(size, window or 0) - 1


def near(context: Context, size: int, window: int | None, now: slice) -> Group:
    """The keys of the query's own block of `size` up to itself, and of the window where there is one.

    They are keys of a layer that keeps the newest `reach_of(size, window)`. A query always sees itself.
    """
    name = ("near", size, window, now.start, now.stop)
    if name not in context.memo:
        reach = reach_of(size, window)
        held = keys_of(context, reach)
        keys, back = _back(held, context, now, reach)
        far = (blocks_of(context, size).rank[:, now] % size).clamp(min=(window or 1) - 1)
        seen = (back >= 0) & (back <= far[..., None])
        context.memo[name] = Group(keys, _of_its_document(held, context, now, keys, seen), back)
    return context.memo[name]


def entries(context: Context, blocks: Blocks, chosen: torch.Tensor | None, nudge: torch.Tensor | None, now: slice):
    """The Group of the entries `chosen` [B, T, E], or of all that may be seen."""
    keys = slice(0, (context.past + now.stop) // blocks.size)
    seen = blocks.visible(now) if chosen is None else chosen[:, now]
    return Group(keys, seen[..., keys], blocks.back(now)[..., keys], None if nudge is None else nudge[:, now, keys])


def nothing(others: Group) -> Group:
    """One key more, seen where no key of `others` is, so that no softmax is empty."""
    alone = ~others.seen.any(-1, keepdim=True)
    return Group(slice(0, 1), alone, torch.zeros_like(alone, dtype=torch.long))


def inside(context: Context, blocks: Blocks, chosen: torch.Tensor, nudge: torch.Tensor | None, now: slice) -> Group:
    """Of all S keys those of the query's own block up to itself, and those of the blocks `chosen` [B, T, E]."""
    held = keys_of(context, None)
    keys, back = _back(held, context, now, None)
    own = (back >= 0) & (back <= (blocks.rank[:, now] % blocks.size)[..., None])
    owner, chosen = blocks.owner[:, keys], chosen[:, now]
    seen = _of_its_document(held, context, now, keys, own | _spread(owner, chosen))
    if nudge is not None:
        nudge = _spread(owner, nudge[:, now].masked_fill(~chosen, 0.0))
    return Group(keys, seen, back, nudge)


def mask_of(groups: list[Group], alibi_heads: int, dtype: torch.dtype) -> torch.Tensor:
    """The mask over all keys of all groups in turn: bool [B, 1, C, X], or what is added to scores, [B, 1 or H, C, X].

    `alibi_heads` > 0 takes slope * tokens back from every score, of an entry those back to its first token.
    """
    seen, bias = _side_by_side([g.seen for g in groups])[:, None], None
    if alibi_heads:
        bias = alibi_bias(_side_by_side([g.back for g in groups])[:, None], alibi_heads, dtype)
    if any(g.nudge is not None for g in groups):
        nudges = [torch.zeros_like(g.seen, dtype=torch.float32) if g.nudge is None else g.nudge for g in groups]
        nudge = _side_by_side(nudges)[:, None]
        bias = nudge if bias is None else bias + nudge
    return seen if bias is None else bias.masked_fill(~seen, -torch.inf)


def _side_by_side(tensors: list[torch.Tensor]) -> torch.Tensor:
    rows = max(len(t) for t in tensors)
    return torch.cat([t.expand(rows, -1, -1) for t in tensors], -1)


def _back(held, context: Context, now: slice, reach: int | None) -> tuple[slice, torch.Tensor]:
    """Of the keys held those that queries `now` may reach, and how many real tokens back each is, [B, C, X]."""
    past = held.count.shape[1] - context.positions.shape[1]
    far = reach is None or held.keep is not None  # padding lies between keys, and is not counted
    keys = slice(0 if far else max(0, past + now.start - reach), past + now.stop)
    return keys, held.count[:, past + now.start : past + now.stop, None] - held.count[:, None, keys]


def _spread(owner: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """What `values` [B, C, E] say of a block, for tokens of the blocks `owner` [B, X]; zero without an entry."""
    rows = max(len(values), len(owner))
    owner = owner.clamp(0, values.shape[2])[:, None].expand(rows, values.shape[1], -1)
    return F.pad(values, (0, 1)).expand(rows, -1, -1).gather(2, owner)


def _of_its_document(held, context: Context, now: slice, keys: slice, seen: torch.Tensor) -> torch.Tensor:
    """`seen` [B, C, X] without padding and other documents, and always with the query itself."""
    past = held.count.shape[1] - context.positions.shape[1]
    queries = slice(past + now.start, past + now.stop)
    if held.keep is not None:
        seen = seen & held.keep[:, None, keys]
    if held.documents is not None:
        seen = seen & (held.documents[:, queries, None] == held.documents[:, None, keys])
    place = torch.arange(held.count.shape[1], device=seen.device)
    return seen | (place[None, keys] == place[queries, None])

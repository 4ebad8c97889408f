"""Which keys a query sees: causality, windows, padding, documents, and the ALiBi bias.

B batch, T queries of this call, P past tokens, S = P + T, K keys a layer holds in this call (K <= S), H heads.
Distances count real tokens of the row, so padding inside a window costs nothing.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .context import Context
from .op_precision import at_least_float32


class Window(NamedTuple):
    """`size` keys including the query itself; None is global.

    standard (sliding): distances 0 to size - 1. dilated: of these the multiples of `dilation`. nsa: these, and beyond
    them the multiples of size * dilation, counted back from the query.
    """

    size: int | None
    mode: str
    dilation: int

    @property
    def reach(self) -> int | None:
        """How many past keys can still matter; None: all."""
        return None if self.size is None or self.mode == "nsa" else self.size - 1


@dataclass(frozen=True)
class Keys:
    """The keys a layer holds in this call, oldest first, the last T of them those of the call."""

    count: torch.Tensor  # [B or 1, K] int: real tokens of the row up to this one; the same on padding that follows it
    positions: torch.Tensor  # [B, K] int
    keep: torch.Tensor | None  # [B, K] bool
    documents: torch.Tensor | None  # [B, K] int


def keys_of(context: Context, reach: int | None) -> Keys:
    """What a layer that keeps its `reach` newest past keys holds."""
    if ("keys", reach) not in context.memo:
        context.memo["keys", reach] = _keys_of(context, reach)
    return context.memo["keys", reach]


def _keys_of(context: Context, reach: int | None) -> Keys:
    keep, s = context.key_keep, context.key_positions.shape[1]
    count = torch.arange(1, s + 1, device=context.positions.device)[None] if keep is None else keep.long().cumsum(1)
    full = (count, context.key_positions, keep, context.key_documents)
    if reach is None or context.past <= reach:
        return Keys(*full)
    if keep is None:
        return Keys(*(t if t is None else t[:, context.past - reach :] for t in full))
    past = _newest(keep[:, : context.past], reach)
    now = torch.arange(context.past, s, device=past.device).expand(len(past), -1)
    slots = torch.cat((past, now), 1)
    return Keys(*(t if t is None else t.gather(1, slots) for t in full))


def _newest(keep: torch.Tensor, n: int) -> torch.Tensor:
    """Slots of the `n` newest real entries of each row of `keep` [B, K], in order; padding fills up on the left."""
    return keep.int().argsort(dim=1, stable=True)[:, keep.shape[1] - n :]


def retain(tensor: torch.Tensor, context: Context, reach: int | None) -> torch.Tensor:
    """Of `tensor` [B, K, ...], one entry per key held, what the next call can still need."""
    k = tensor.shape[1]
    if reach is None or k <= reach:
        return tensor
    keep = keys_of(context, reach).keep
    if keep is None:
        rest = tensor[:, k - reach :]
        return rest.clone() if k > reach + 1 else rest  # a view would hold on to the whole prompt
    if ("newest", reach) not in context.memo:
        context.memo["newest", reach] = _newest(keep, reach)
    index = context.memo["newest", reach]
    return tensor.gather(1, index.view(*index.shape, *[1] * (tensor.dim() - 2)).expand(-1, -1, *tensor.shape[2:]))


def visible(context: Context, window: Window) -> torch.Tensor:
    """[B or 1, T, K] bool. A query always sees itself, so that padding has finite outputs."""
    held = keys_of(context, window.reach)
    t, k = context.positions.shape[1], held.count.shape[1]
    query, key = held.count[:, k - t :, None], held.count[:, None, :]
    seen = key <= query
    if window.size is not None:
        near = key > query - window.size
        if window.mode == "dilated":
            seen = seen & near & ((query - key) % window.dilation == 0)
        elif window.mode == "nsa":
            seen = seen & (near | ((query - key) % (window.size * window.dilation) == 0))
        else:
            seen = seen & near
    if held.keep is not None:
        seen = seen & held.keep[:, None, :]
    if held.documents is not None:
        seen = seen & (held.documents[:, k - t :, None] == held.documents[:, None, :])
    slots = torch.arange(k, device=seen.device)
    return seen | (slots[None, :] == slots[k - t :, None])


def is_plain(context: Context, window: Window) -> bool:
    """Whether "causal" says it all: no padding, documents or biting window, and query i is key i or the last one."""
    t, k = context.positions.shape[1], keys_of(context, window.reach).count.shape[1]
    bites = window.size is not None and (k > window.size or (window.mode == "dilated" and window.dilation > 1))
    aligned = t == 1 or context.past == 0
    return aligned and not bites and context.key_keep is None and context.key_documents is None


def attention_mask(context: Context, window: Window, alibi_heads: int, dtype: torch.dtype) -> torch.Tensor | None:
    """What is added to, or selects among, attention scores: None (causal), bool [B or 1, 1, T, K], or with
    `alibi_heads` > 0 a bias [B or 1, H, T, K] of `dtype`. Made once per call for all layers alike."""
    if not alibi_heads and is_plain(context, window):
        return None
    name = ("mask", window, alibi_heads, dtype if alibi_heads else None)
    if name not in context.memo:
        seen = visible(context, window)[:, None]
        context.memo[name] = _alibi(context, window, alibi_heads, dtype, seen) if alibi_heads else seen
    return context.memo[name]


def alibi_slopes(n_heads: int) -> list[float]:
    """2^(-8 i / H) for i = 1..H when H is a power of two; otherwise those of the power below, and every other one of
    the power above (Press et al. 2022, section 3 and its reference code)."""
    below = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * i / below) for i in range(1, below + 1)]
    return slopes + [2 ** (-4 * i / below) for i in range(1, 2 * (n_heads - below) + 1, 2)]


def alibi_bias(distance: torch.Tensor, n_heads: int, dtype: torch.dtype) -> torch.Tensor:
    """-slope * `distance` [B, 1, T, K] for each head, [B, H, T, K], in `dtype` or float32, whichever is wider."""
    exact = at_least_float32(dtype)
    slopes = torch.tensor(alibi_slopes(n_heads), dtype=exact, device=distance.device)
    return -slopes[:, None, None] * distance


def _alibi(context: Context, window: Window, n_heads: int, dtype: torch.dtype, seen: torch.Tensor) -> torch.Tensor:
    """-slope * distance where `seen` [B or 1, 1, T, K], minus infinity elsewhere."""
    count = keys_of(context, window.reach).count
    distance = count[:, None, -context.positions.shape[1] :, None] - count[:, None, None, :]
    return alibi_bias(distance, n_heads, dtype).to(dtype).masked_fill(~seen, -torch.inf)

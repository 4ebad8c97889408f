"""Contexts in which only some of the tokens of a call are real, for a layer that only these pass through.

B batch, T tokens of the call, P past tokens, S = P + T, K tokens gathered.
"""

from dataclasses import replace

import torch
from torch.nn import functional as F

from .context import Context
from .op_context import for_other_tokens

PASSED, INSIDE = 1, 2  # bits of a token in the history: it passed; a document begins there inside a call
SLACK = 1e-6  # 0.1 * 30 is 3.0000000000000004, and its ceiling is to be 3


def best(score: torch.Tensor, capacity: float, context: Context) -> torch.Tensor:
    """The ceil(capacity n) largest of the n real tokens of each document, [B, T] bool for scores [B, T]."""
    b, t = score.shape
    number = torch.zeros_like(score, dtype=torch.long) if context.starts is None else context.starts.long().cumsum(1)
    if context.keep is not None:
        number = number.where(context.keep, t + 1)  # a document of its own, from which nothing is taken
    order = score.argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, number.gather(1, order).argsort(dim=1, stable=True))  # by document, the best first
    size = number.new_zeros(b, t + 2).scatter_add_(1, number, torch.ones_like(number))
    quota = (size.double() * capacity - SLACK).ceil().long()
    quota[:, t + 1] = 0
    number = number.gather(1, order)
    rank = torch.arange(t, device=score.device) - (size.cumsum(1) - size).gather(1, number)
    return torch.zeros_like(score, dtype=torch.bool).scatter(1, order, rank < quota.gather(1, number))


def gathered(chosen: torch.Tensor, context: Context, by_name: bool) -> tuple[torch.Tensor, Context]:
    """The slots [B, K] of the `chosen` [B, T] tokens of a call without a past, in order, and their Context.

    K is that of the row with the most; the others are filled up with padding. Places stay those in the whole document.
    With `by_name` the padding is told even where there is none: kernels that read documents out of places would take
    the gaps between places for borders.
    """
    count = chosen.sum(1)
    even = context.keep is None and context.starts is None  # then the count is a matter of T alone
    most = count[0] if even else count.max()
    slots = (~chosen).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(most)]
    keep = None if even and not by_name else chosen.gather(1, slots)
    positions, documents, starts = context.positions.gather(1, slots), None, None
    if context.starts is not None:
        documents = context.starts.long().cumsum(1).gather(1, slots)
        starts = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0)) & keep
    inner = replace(
        context,
        positions=positions,
        keep=keep,
        starts=starts,
        key_positions=positions,
        key_keep=keep,
        key_documents=documents,
        input_ids=None if context.input_ids is None else context.input_ids.gather(1, slots),
        **_own(context),
    )
    return slots, inner


def masked(decided: torch.Tensor, context: Context, past: torch.Tensor | None) -> tuple[Context, torch.Tensor]:
    """The Context of a call where only the `decided` [B, T] of its real tokens and those of the past are real, and the
    history [B, S] that a later call takes as `past`: of each token PASSED, INSIDE, both or 0.

    A document starts at its first token that passes, even if that comes in a later call than its first token.
    """
    chosen = decided if context.keep is None else decided & context.keep
    marks = PASSED * chosen.to(torch.uint8) + INSIDE * _inside(context)
    history = marks if past is None else torch.cat((past, marks), 1)
    real, starts, renewed = (history & PASSED).bool(), None, None
    if context.key_documents is not None:
        starts, renewed = (t[:, context.past :] for t in _borders(real, history, context.key_documents))
    inner = replace(context, keep=chosen, starts=starts, renewed=renewed, key_keep=real, **_own(context))
    return inner, history


def _inside(context: Context) -> torch.Tensor:
    """The tokens [B, T] that begin a document and are not their row's first real ones in this call; uint8."""
    if context.starts is None:
        return torch.zeros_like(context.positions, dtype=torch.uint8)
    real = torch.ones_like(context.starts) if context.keep is None else context.keep
    return (context.starts & (real.cumsum(1) > 1)).to(torch.uint8)


def _borders(real: torch.Tensor, history: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The `real` tokens [B, S] whose document is not that of the real token before them, and those of them where since
    that token a document has begun inside a call."""
    slots = torch.arange(real.shape[1], device=real.device).expand_as(real)
    last = F.pad(slots.where(real, -1).cummax(1).values[:, :-1], (1, 0), value=-1)
    earlier, begun = last.clamp(min=0), (history & INSIDE).bool().cumsum(1)
    starts = real & (last >= 0) & (documents != documents.gather(1, earlier))
    return starts, starts & (begun != begun.gather(1, earlier))


def _own(context: Context) -> dict:
    """A memo for masks of these tokens, and keywords without what they say of the whole call's documents.

    `call` is the memo of the whole call, for what must be the same when a checkpointed layer runs again.
    """
    memo = {"call": context.memo.get("call", context.memo)}
    return {"memo": memo, "extra": for_other_tokens(context.extra)}

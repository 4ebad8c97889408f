"""From the arguments of a forward pass to its Context: padding, places, document borders.

B batch, T tokens of this call, P past tokens, S = P + T.
"""

from dataclasses import fields, replace

import torch
from torch.nn import functional as F

from .context import Context

PACKING = ("seq_idx", "cu_seq_lens", "cu_seq_lens_q")
OF_ONE_LENGTH = ("seq_idx", "cu_seq_lens", "max_length")  # how keywords begin that go with tokens of one number only


def build_context(x, *, past, attention_mask, position_ids, use_cache, input_ids, extra) -> Context:
    """The Context of a call on `x` [B, T, D] that continues `past`, a cache or None.

    `attention_mask` [B, T] or [B, S] is zero on padding; `position_ids` [B or 1, T] are used as given, and a place that
    does not follow the place before it starts a document, unless `extra` says where documents lie: `seq_idx` [B, T]
    (a number per document) or `cu_seq_lens_q` / `cu_seq_lens` [N + 1] (offsets into the flattened tokens).

    Raises ValueError for a mask or places of another shape.
    """
    b, t = x.shape[:2]
    seen = past.seen if past is not None else 0
    keep = _keep(attention_mask, b, t, seen)
    if position_ids is not None:
        position_ids = _places_as_given(position_ids, b, t)
    starts = _starts(position_ids, extra, keep, seen, (b, t))
    first = past.next_positions() if seen else None
    positions = position_ids if position_ids is not None else _places(keep, starts, first, x.device, (b, t))
    old_positions, old_keep, old_documents = past.history() if seen else (None, None, None)
    document = None if starts is None else starts.long().cumsum(1)
    if old_documents is not None:
        document = old_documents[:, -1:] + (positions.new_zeros(b, t) if document is None else document)
    return Context(
        positions=positions,
        keep=keep,
        starts=starts,
        key_positions=_join(old_positions, positions, 0, seen),
        key_keep=_join(old_keep, keep if old_keep is None or keep is not None else old_keep.new_ones(b, t), True, seen),
        key_documents=_join(old_documents, document, 0, seen),
        past=seen,
        use_cache=use_cache,
        input_ids=input_ids,
        extra=extra,
    )


def on_device(context: Context, device: torch.device) -> Context:
    """`context` with its tensors on `device`, where the layers of one model are spread over several."""
    if context.positions.device == device:
        return context
    if ("on", device) not in context.memo:
        tensors = {f.name: getattr(context, f.name) for f in fields(context)}
        moved = {name: t.to(device) for name, t in tensors.items() if torch.is_tensor(t)}
        context.memo["on", device] = replace(context, **moved, memo={})
    return context.memo["on", device]


def for_other_tokens(extra: dict) -> dict:
    """The keywords `extra` of a call without those that say where documents lie among its tokens."""
    return {name: value for name, value in extra.items() if not name.startswith(OF_ONE_LENGTH)}


def _unless_all(mask: torch.Tensor, value: bool) -> torch.Tensor | None:
    """None where every entry is `value`; while a graph is traced the entries are unknown and the mask stays."""
    if torch.compiler.is_compiling() or mask.is_meta:
        return mask
    return None if bool((mask == value).all()) else mask


def _keep(mask, b: int, t: int, seen: int) -> torch.Tensor | None:
    if mask is None:
        return None
    if isinstance(mask, dict):
        raise ValueError("this model keeps a cache of its own: generate without cache_implementation='static'")
    if mask.dim() != 2 or mask.shape[0] != b or (mask.shape[1] != t and mask.shape[1] != seen + t):
        raise ValueError(f"attention_mask must be [{b}, {seen + t}], zero on padding; got {list(mask.shape)}")
    return _unless_all(mask[:, -t:].bool(), True)


def _places_as_given(position_ids: torch.Tensor, b: int, t: int) -> torch.Tensor:
    rows = position_ids.shape[0]
    if position_ids.dim() != 2 or (rows != 1 and rows != b) or position_ids.shape[1] != t:
        raise ValueError(f"position_ids must be [{b}, {t}]; got {list(position_ids.shape)}")
    return position_ids.expand(b, t)


def _before(values: torch.Tensor, keep: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token the value of the last real token before it in this call, and whether there is one; [B, T] each."""
    slot = torch.arange(values.shape[1], device=values.device).expand(values.shape)
    real = slot if keep is None else torch.where(keep, slot, -1).cummax(1).values
    previous = F.pad(real[:, :-1], (1, 0), value=-1)
    return values.gather(1, previous.clamp(min=0)), previous >= 0


def _starts(position_ids, extra: dict, keep, seen: int, shape) -> torch.Tensor | None:
    """Real tokens that begin a new document, [B, T] bool, or None if there are none."""
    number = _document_numbers(extra, shape)
    if number is not None:
        previous, exists = _before(number, keep)
        starts = exists & (number != previous)
    elif position_ids is not None:
        previous, exists = _before(position_ids, keep)
        starts = exists & (position_ids != previous + 1)
    else:
        return None
    if seen and position_ids is not None:
        # Across calls only place 0 is a border: `generate` numbers on from padding, so other jumps say nothing.
        starts = starts | (~exists & (position_ids == 0))
    return _unless_all(starts if keep is None else starts & keep, False)


def _document_numbers(extra: dict, shape) -> torch.Tensor | None:
    found = {name: extra[name] for name in PACKING if extra.get(name) is not None}
    if "seq_idx" in found:
        return found["seq_idx"].expand(shape)
    for ends in found.values():
        slots = torch.arange(shape[0] * shape[1], device=ends.device, dtype=ends.dtype)
        return torch.searchsorted(ends[1:].contiguous(), slots, right=True).view(shape)
    return None


def _places(keep, starts, first, device, shape) -> torch.Tensor:
    """Count real tokens from `first` [B, 1] (the row's next place), or from 0 at a document border."""
    real = torch.ones(shape, dtype=torch.long, device=device) if keep is None else keep.long()
    count = real.cumsum(1) - 1
    places = count if first is None else count + first
    if starts is not None:
        border = torch.where(starts, count, -1).cummax(1).values
        places = torch.where(border >= 0, count - border, places)
    return places.clamp(min=0)


def _join(old, new, blank, seen: int) -> torch.Tensor | None:
    """`old` [B, P] and `new` [B, T] in one [B, S]; a missing one is all `blank`; None if both are missing."""
    if not seen or (old is None and new is None):
        return new
    if old is None:
        old = new.new_full((new.shape[0], seen), blank)
    return torch.cat((old, new), 1)

"""The cache of a decoder: one state per layer, and what was seen so far.

A state belongs to its mixer and is a dict of tensors, batch first, or None. B batch, P past tokens.
"""

import torch
from transformers import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast

# What the outputs of this transformers call a cache; since 5.24 the older name draws a warning.
FIELD = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"


class EulerStackCache(Cache):
    """States of all layers after P tokens, with their places, padding and document numbers.

    transformers drives it through the names of its own Cache; it has none of that class's layers.
    `croppable` says that every state holds one entry per token on axis 1, so that the last tokens can be taken back.
    """

    def __init__(self, n_layers: int, croppable: bool = False):
        super().__init__(layers=[])
        self.states: list[dict[str, torch.Tensor] | None] = [None] * n_layers
        self.croppable = croppable
        self.positions: torch.Tensor | None = None  # [B, P] int
        self.keep: torch.Tensor | None = None  # [B, P] bool; None: no padding
        self.documents: torch.Tensor | None = None  # [B, P] int; None: one document

    @property
    def seen(self) -> int:
        """P."""
        return 0 if self.positions is None else self.positions.shape[1]

    def history(self) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """`positions`, `keep` and `documents`."""
        return self.positions, self.keep, self.documents

    def next_positions(self) -> torch.Tensor:
        """The place after each row's last real token, [B, 1]."""
        if self.keep is None:
            return self.positions[:, -1:] + 1
        slot = torch.arange(self.seen, device=self.keep.device)
        last = torch.where(self.keep, slot, -1).amax(1, keepdim=True)
        return torch.where(last >= 0, self.positions.gather(1, last.clamp(min=0)) + 1, 0)

    def advance(self, states: list, positions, keep, documents) -> None:
        """Take over the states after a call and the history that includes it."""
        self.states = list(states)
        self.positions, self.keep, self.documents = positions, keep, documents

    def _each(self, change) -> None:
        """Replace every tensor by `change(tensor)`."""
        self.states = [state and {name: change(t) for name, t in state.items()} for state in self.states]
        self.advance(self.states, *(t if t is None else change(t) for t in self.history()))

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._each(lambda t: t.index_select(0, beam_idx.to(t.device)))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._each(lambda t: t[indices.to(t.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda t: t.repeat_interleave(repeats, dim=0))

    def reset(self) -> None:
        self.advance([None] * len(self.states), None, None, None)

    def crop(self, count: int) -> None:
        """Take back the last `-count` tokens, or keep the first `count` if it is positive.

        Raises ValueError where a layer's state has forgotten what it would need: recurrences and trimmed windows.
        """
        length = count if count > 0 else self.seen + count
        if length >= self.seen:
            return
        if not self.croppable:
            raise ValueError("this cache cannot be cropped: a recurrent or windowed layer no longer holds its past")
        self.reset() if length <= 0 else self._each(lambda t: t[:, :length])

    def get_seq_length(self, layer_idx: int = 0, *_, **__) -> int:
        return self.seen

    def get_mask_sizes(self, query, *_, **__) -> tuple[int, int]:
        return self.seen + (query if isinstance(query, int) else query.shape[0]), 0

    def get_max_cache_shape(self, *_, **__) -> int:
        return -1

    get_max_length = get_max_cache_shape

    def has_previous_state(self, *_, **__) -> bool:
        return self.seen > 0

    def update(self, *_, **__):
        raise TypeError("layers of this model return their state; nothing writes into its cache")

    def activate_past_recording(self) -> None:
        """Nothing to do: a croppable cache holds its whole past, and no other can be cropped."""

    @property
    def batch_size(self) -> int:
        return -1 if self.positions is None else self.positions.shape[0]

    @property
    def is_initialized(self) -> bool:
        return self.seen > 0

    @property
    def is_croppable(self) -> bool:
        return self.croppable

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self.states)

    is_linear = is_dummy = is_sliding

    def __len__(self) -> int:
        return len(self.states)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.states)} layers, {self.seen} tokens)"


def own_cache(given, n_layers: int, croppable: bool) -> EulerStackCache:
    """`given` if it is ours, a fresh cache for None or an empty one of another class.

    Raises ValueError for a cache of another class that holds tokens, since its content cannot be read.
    """
    if isinstance(given, EulerStackCache):
        return given
    if given is not None and not _is_empty(given):
        raise ValueError(f"cannot continue a filled {type(given).__name__}; pass the cache an earlier call returned")
    return EulerStackCache(n_layers, croppable)


def _is_empty(cache) -> bool:
    try:
        return cache.get_seq_length() == 0
    except ValueError:  # a cache of linear layers only counts no tokens
        return not cache.has_previous_state()

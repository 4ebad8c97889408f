"""What one forward pass tells every part of the model.

B batch, T tokens of this call, S past and present tokens.
"""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Context:
    """Facts about the tokens of this call, computed once by the decoder and read by all layers.

    A mixer's state is a plain `dict[str, Tensor]`, batch first. `None` means: a fresh sequence.
    """

    positions: torch.Tensor  # [B, T] int: place of each token in its document, for rotary and learned positions
    keep: torch.Tensor | None = None  # [B, T] bool: False on padding; None: every token is real
    starts: torch.Tensor | None = None  # [B, T] bool: a new document begins, state resets before it
    key_positions: torch.Tensor | None = None  # [B, S] int: `positions` of every cached and present token
    key_keep: torch.Tensor | None = None  # [B, S] bool
    key_documents: torch.Tensor | None = None  # [B, S] int: document number of each key; None: one document
    past: int = 0  # S - T
    use_cache: bool = False  # a mixer returns its new state iff this is True
    input_ids: torch.Tensor | None = None  # [B, T] int, None when the caller gave embeddings
    renewed: torch.Tensor | None = None  # [B, T] bool: those of `starts` that no session outlives; None: by their place
    memo: dict = field(default_factory=dict)  # values shared by layers of one call: masks, cos and sin
    extra: dict = field(default_factory=dict)  # the caller's keywords, passed on to the attention kernel

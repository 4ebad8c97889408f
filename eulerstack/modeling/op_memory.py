"""What the memories of a layer share: when they are written, where they start, what a document border does to them.

B batch, T tokens.
"""

from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Constant, Rule
from .op_precision import wide
from .op_state import State, under


class Memory(nn.Module, ABC):
    """A memory that starts, in a fresh sequence, as learned, plus what `remember` has put into its buffers.

    persistence per_query: every document starts there. session: so do documents inside a call, but one that begins a
    call which continues a state finds that state. persistent: as session, and there are buffers `start_<name>`,
    float32, zero when new, saved and loaded with the weights. Without `update_at_inference` the memory is written in
    training alone; in evaluation its start is read, and no state is kept.
    """

    def __init__(self, config, layer_idx: int, *, update_at_inference: bool, persistence: str):
        super().__init__()
        if persistence not in ("per_query", "session", "persistent"):
            raise ValueError(f"unknown persistence {persistence!r}; one of per_query, session, persistent")
        self.config, self.layer_idx = config, layer_idx
        self.update_at_inference, self.persistence = update_at_inference, persistence
        self.kept: tuple[str, ...] = ()

    def keep(self, **shapes: tuple[int, ...]) -> None:
        """Let what has these names and shapes persist, if anything of this memory does."""
        if self.persistence == "persistent":
            self.kept = tuple(f"start_{name}" for name in shapes)
            for name, shape in shapes.items():
                self.register_buffer(f"start_{name}", torch.zeros(shape, dtype=torch.float32))

    def rules_of_starts(self) -> dict[str, Rule]:
        return dict.fromkeys(self.kept, Constant(0.0))

    @property
    def written(self) -> bool:
        """Whether the tokens of this call are written into the memory."""
        return self.training or self.update_at_inference

    def start(self, name: str) -> torch.Tensor:
        """The parameter `name` and what was remembered of it, in float32 or wider."""
        learned = wide(getattr(self, name))
        return learned + getattr(self, f"start_{name}").to(learned.dtype) if self.kept else learned

    def borders(self, context: Context, state: State | None) -> torch.Tensor | None:
        """`[B, T]` bool, True where the memory goes back to its start before the token; None if nowhere."""
        starts = context.starts
        if starts is None or state is None or self.persistence == "per_query":
            return starts
        if context.renewed is not None:
            return context.renewed
        if context.keep is None:
            return F.pad(starts[:, 1:], (1, 0))
        earlier = context.keep.cumsum(1) - context.keep.long()
        return starts & (earlier > 0)

    @abstractmethod
    def held(self, state: State, row: int) -> State:
        """What of a state persists, as it would have been learned, for one row."""

    @torch.no_grad()
    def remember(self, state: State, row: int = 0) -> None:
        """Let fresh sequences start where row `row` of a state of this memory, or of its whole layer, stands.

        Raises ValueError if this memory does not persist, or has left nothing in the state.
        """
        own = under("memory/", state) or state
        if not own:
            raise ValueError("this memory has written nothing; call it in training or with update_at_inference")
        if self.persistence != "persistent":
            raise ValueError(f"a memory of persistence {self.persistence} keeps no start; set it to persistent")
        for name, tensor in self.held(own, row).items():
            learned = getattr(self, name, None)
            buffer = getattr(self, f"start_{name}")
            buffer.copy_(tensor if learned is None else wide(tensor) - wide(learned))

    def _apply(self, fn, recurse=True):
        """Buffers stay in float32 when the model is cast to half precision, as they are saved."""
        before = {name: self._buffers[name] for name in self.kept}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            if self._buffers[name].dtype in (torch.bfloat16, torch.float16):
                self._buffers[name] = buffer.to(self._buffers[name].device)
        return self


def unit(x: torch.Tensor) -> torch.Tensor:
    """`x` in float32 or wider, scaled to length one over the last axis; zeros stay."""
    return F.normalize(wide(x), dim=-1)

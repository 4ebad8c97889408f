"""A memory that looks things up: the nearest earlier tokens of the sequence (Wu et al. 2022, Memorizing Transformers).

    y_t = W_o sigmoid(w . x_t + c) sum over j in N(t) of softmax_j(s q_t . k_j) v_j        k, q of length one

N(t) are the 8 tokens whose keys are nearest to q_t among the `hidden` newest ones before t (all that tie with the
last). With nothing before it y_t is zero.

B batch, T tokens, D d_model, C = head_dim features of a key, S entries held.
"""

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Constant, Init, Rule
from .op_memory import Memory as Base
from .op_memory import State
from .op_neighbours import Entries, recall, seat

QUERIES = 512  # compared with all entries at a time; does not change the result
SHARPNESS = 8.0  # of the first softmax: cosines lie within one of zero


class Memory(Base):
    """Input and output `[B, T, D]`. State: the newest entries, at most `hidden`, the last one at the end: `keys`
    `[B, S, C]` and `values` `[B, S, D]` in the dtype of the input, `real` `[B, S]` bool.

    `inner_lr` is in no formula here, since nothing descends a gradient, and is not kept.
    """

    def __init__(
        self, config, layer_idx: int, *, hidden: int, update_at_inference: bool, inner_lr: float, persistence: str
    ):
        super().__init__(config, layer_idx, update_at_inference=update_at_inference, persistence=persistence)
        d, size = config.hidden_size, config.head_dim
        self.hidden = hidden
        self.q_proj = nn.Linear(d, size, bias=False)
        self.k_proj = nn.Linear(d, size, bias=False)
        self.v_proj = nn.Linear(d, d, bias=False)
        self.scale = nn.Parameter(torch.empty(1))
        self.gate_proj = nn.Linear(d, 1)
        self.o_proj = nn.Linear(d, d, bias=False)
        self.o_proj.to_residual = True
        self.keep(keys=(hidden, size), values=(hidden, d), real=(hidden,))

    def initial(self, init: Init) -> dict[str, Rule]:
        return {"scale": Constant(SHARPNESS)} | self.rules_of_starts()

    def held(self, state: State, row: int) -> State:
        spare = self.hidden - state["real"].shape[1]
        return {name: F.pad(t[row], (0, 0) * (t.dim() - 2) + (spare, 0)) for name, t in state.items()}

    def forward(self, x: torch.Tensor, context: Context, state: State | None) -> tuple[torch.Tensor, State | None]:
        if not self.written and not self.kept:
            return torch.zeros_like(x), {} if context.use_cache else None
        first = self._first(x)
        if not self.written:
            there = first["real"][:, None].expand(-1, x.shape[1], -1)
            y = recall(self.q_proj(x), first, there, self.scale)
            return self._gated(x, y), {} if context.use_cache else None
        old, resets = first if state is None else state, self.borders(context, state)
        real = x.new_ones(x.shape[:2], dtype=torch.bool) if context.keep is None else context.keep
        new = {"keys": self.k_proj(x), "values": self.v_proj(x), "real": real}
        blocks = [old, new] if resets is None else [first, old, new]
        entries = {name: torch.cat([block[name] for block in blocks], 1) for name in new}
        seats = seat(first["real"], old["real"], real, resets)
        # Then the entries of a document lie side by side, and those further back than any can see are left out.
        reach = self.hidden if context.keep is None and (resets is None or not self.kept) else None
        y = self._read(self.q_proj(x), entries, seats, reach)
        newest = None
        if context.use_cache:
            size = min(self.hidden, old["real"].shape[1] + x.shape[1])
            newest = seats.newest(entries, size, in_order=context.keep is None and resets is None)
        return self._gated(x, y), newest

    def _first(self, x: torch.Tensor) -> Entries:
        """What a document starts with, `[B, hidden, *]`, or nothing, `[B, 0, *]`."""
        b, size = len(x), self.k_proj.out_features
        if not self.kept:
            real = x.new_zeros(b, 0, dtype=torch.bool)
            return {"keys": x.new_zeros(b, 0, size), "values": x.new_zeros(b, 0, x.shape[2]), "real": real}
        keys, values = (t.to(x.dtype).expand(b, -1, -1) for t in (self.start_keys, self.start_values))
        return {"keys": keys, "values": values, "real": (self.start_real > 0).expand(b, -1)}

    def _read(self, q: torch.Tensor, entries: Entries, seats, reach: int | None) -> torch.Tensor:
        """Some queries at a time, each with the entries up to the last of them, from `reach` before the first on."""
        earlier, reads = entries["real"].shape[1] - q.shape[1], []
        for some in q.split(QUERIES, 1):
            now = slice(earlier, earlier + some.shape[1])
            past = slice(0 if reach is None else max(0, now.start - reach), now.stop)
            seen = {name: t[:, past] for name, t in entries.items()}
            reads.append(recall(some, seen, seats.before(now, past, self.hidden), self.scale))
            earlier = now.stop
        return torch.cat(reads, 1)

    def _gated(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.o_proj(self.gate_proj(x).sigmoid() * y.to(x.dtype))

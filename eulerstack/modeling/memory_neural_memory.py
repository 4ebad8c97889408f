"""The neural long-term memory (Behrouz et al. 2025, Titans): a network that goes on learning while it reads.

    M(k) = W2 silu(W1 k)                 g_t = gradient over W1, W2 of |M(k_t) - v_t|^2, the surprise
    S_t = n_t S_{t-1} - r_t g_t          M_t = (1 - a_t) M_{t-1} + S_t          y_t = W_o M_t(q_t)
    a_t = sigmoid(z1 - 4.6)              n_t = sigmoid(z2 + 2.2)                r_t = inner_lr sigmoid(z3)

with z = W_z x_t + c, and k, q of length one. At first a memory thus loses 1 % a token and its momentum 10 %. Gradients
are taken at the weights before a mini-batch of 16 tokens, counted from the start of the document, and damped where the
step would overshoot (`op_surprise.py`). M_0 is learned, S_0 is zero.

B batch, T tokens, D d_model, H = hidden features inside, P = head_dim, N mini-batches of L = 16 tokens.
"""

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Init, Rule
from .op_memory import Memory as Base
from .op_memory import State, unit
from .op_minibatch import Arrangement, arrange
from .op_precision import own_precision, wide
from .op_surprise import read_and_write, shares

MINI_BATCH = 16
FORGET, INERTIA = -4.6, 2.2
SLACK = 1e-6  # a momentum that loses less a token is damped as if it lost this


class Memory(Base):
    """Input and output `[B, T, D]`. State, at least float32: `up` `[B, 2, H, P]` and `down` `[B, 2, P, H]`, weights and
    momentum, `anchor_up` `[B, H, P]` and `anchor_down` `[B, P, H]`, the weights where the open mini-batch takes its
    gradients, and `filled` `[B]` int, its tokens."""

    def __init__(
        self, config, layer_idx: int, *, hidden: int, update_at_inference: bool, inner_lr: float, persistence: str
    ):
        super().__init__(config, layer_idx, update_at_inference=update_at_inference, persistence=persistence)
        d, size = config.hidden_size, config.head_dim
        self.inner_lr = inner_lr
        self.q_proj = nn.Linear(d, size, bias=False)
        self.k_proj = nn.Linear(d, size, bias=False)
        self.v_proj = nn.Linear(d, size, bias=False)
        self.gates_proj = nn.Linear(d, 3)
        self.up = nn.Parameter(torch.empty(hidden, size))
        self.down = nn.Parameter(torch.empty(size, hidden))
        self.o_proj = nn.Linear(size, d, bias=False)
        self.o_proj.to_residual = True
        self.keep(up=self.up.shape, down=self.down.shape)

    def initial(self, init: Init) -> dict[str, Rule]:
        rules = {"up": init.matrix(self.up.shape[1]), "down": init.matrix(self.down.shape[1])}
        return rules | self.rules_of_starts()

    def held(self, state: State, row: int) -> State:
        return {"up": state["up"][row, 0], "down": state["down"][row, 0]}

    def forward(self, x: torch.Tensor, context: Context, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, start = unit(self.q_proj(x)), (self.start("up"), self.start("down"))
        with own_precision(x.device):
            if self.written:
                y, after = self._write(x, q, start, context, state)
            else:
                y, after = F.silu(q @ start[0].mT) @ start[1].mT, {}
        return self.o_proj(y.to(x.dtype)), after if context.use_cache else None

    def _write(self, x, q, start, context: Context, state: State | None) -> tuple[torch.Tensor, State]:
        own = replace(context, starts=self.borders(context, state))
        seats = arrange(own, MINI_BATCH, None if state is None else state["filled"])
        forget, inertia, rate = wide(self.gates_proj(x)).unbind(-1)
        rate, slack = self.inner_lr * rate.sigmoid(), (-inertia - INERTIA).sigmoid().clamp(min=SLACK)
        logs = F.logsigmoid(-forget - FORGET), F.logsigmoid(inertia + INERTIA), rate
        share = shares(*(seats.gather(t) for t in logs), seats.mask)
        tokens = [seats.gather(t) for t in (q, unit(self.k_proj(x)), wide(self.v_proj(x)), rate, slack)]
        tokens[-1] = tokens[-1].masked_fill(~seats.mask, 1.0)
        fresh = tuple(torch.stack((w, torch.zeros_like(w))).expand(len(x), -1, -1, -1) for w in start)
        nets, anchors = fresh, tuple(net[:, 0] for net in fresh)
        if state is not None:
            nets, anchors = (state["up"], state["down"]), (state["anchor_up"], state["anchor_down"])
        begins = _begins(seats, state)
        reads = []
        for i in range(tokens[0].shape[1]):
            if own.starts is not None:
                nets = _chosen(seats.fresh[:, i], fresh, nets)
            now = tuple(net[:, 0] for net in nets)
            anchors = now if begins is None else _chosen(begins[:, i], now, anchors)
            parts = tuple(t[:, i] for t in (share.past, share.gradients, share.mix, share.last))
            y, nets = read_and_write(nets, anchors, [t[:, i] for t in tokens], parts)
            reads.append(y)
        names = ("up", "down", "anchor_up", "anchor_down", "filled")
        return seats.scatter(torch.stack(reads, 1)), dict(zip(names, (*nets, *anchors, seats.filled), strict=True))


def _begins(seats: Arrangement, state: State | None) -> torch.Tensor | None:
    """`[B, N]` bool: which mini-batches begin in this call, in rows that have them. None: all do."""
    if seats.dense:
        return None
    begins = seats.mask.any(-1)
    if state is not None:
        begins[:, 0] &= (state["filled"] == 0) | seats.fresh[:, 0]
    return begins


def _chosen(rows: torch.Tensor, these, others) -> tuple[torch.Tensor, ...]:
    """Tensor by tensor, `these` in the `rows` `[B]` that are True and `others` elsewhere."""
    pairs = zip(these, others, strict=True)
    return tuple(torch.where(rows.view(-1, *(1,) * (a.dim() - 1)), a, b) for a, b in pairs)

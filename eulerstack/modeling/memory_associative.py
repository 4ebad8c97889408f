"""An associative memory: a matrix of each head, written by the delta rule (Schlag et al. 2021; Yang et al. 2024).

    S_t = S_{t-1} + b_t (v_t - S_{t-1} k_t) k_t^T        y_t = S_t q_t        k, q of length one
    b_t = r_t / (1 + r_t),  r_t = inner_lr exp(w . x_t + c)

The write is the step of size r_t down |S k - v|^2 / 2, taken implicitly (Liu et al. 2024, Longhorn, section 3.1): it
solves for the S after it, and so cannot overshoot however large r_t is. S_0 is learned.

B batch, T tokens, D d_model, H heads of P features: `hidden` = H P, in as many heads as keep P >= head_dim.
"""

import math

import torch
from torch import nn

from .context import Context
from .initial import Init, Rule
from .op_delta import delta_rule
from .op_memory import Memory as Base
from .op_memory import State, unit
from .op_precision import wide


class Memory(Base):
    """Input and output `[B, T, D]`. State: `weight` `[B, H, P, P]`, at least float32."""

    def __init__(
        self, config, layer_idx: int, *, hidden: int, update_at_inference: bool, inner_lr: float, persistence: str
    ):
        super().__init__(config, layer_idx, update_at_inference=update_at_inference, persistence=persistence)
        d = config.hidden_size
        self.inner_lr = inner_lr
        self.heads = next(n for n in range(max(1, hidden // config.head_dim), 0, -1) if hidden % n == 0)
        size = hidden // self.heads
        self.q_proj = nn.Linear(d, hidden, bias=False)
        self.k_proj = nn.Linear(d, hidden, bias=False)
        self.v_proj = nn.Linear(d, hidden, bias=False)
        self.step_proj = nn.Linear(d, self.heads)
        self.weight = nn.Parameter(torch.empty(self.heads, size, size))
        self.o_proj = nn.Linear(hidden, d, bias=False)
        self.o_proj.to_residual = True
        self.keep(weight=self.weight.shape)

    def initial(self, init: Init) -> dict[str, Rule]:
        return {"weight": init.matrix(self.weight.shape[-1])} | self.rules_of_starts()

    def held(self, state: State, row: int) -> State:
        return {"weight": state["weight"][row]}

    def forward(self, x: torch.Tensor, context: Context, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, start = unit(self._split(self.q_proj(x))), self.start("weight")
        if not self.written:
            y = torch.einsum("hpn,bthn->bthp", start, q)
            return self.o_proj(y.flatten(2).to(x.dtype)), {} if context.use_cache else None
        k, v = unit(self._split(self.k_proj(x))), self._split(self.v_proj(x))
        strength = (wide(self.step_proj(x)) + math.log(self.inner_lr)).sigmoid()
        if context.keep is not None:
            strength = strength.masked_fill(~context.keep[..., None], 0.0)
        before = None if state is None else state["weight"]
        y, after = delta_rule(q, k, v, strength, start, before, self.borders(context, state))
        return self.o_proj(y.flatten(2).to(x.dtype)), {"weight": after} if context.use_cache else None

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1))

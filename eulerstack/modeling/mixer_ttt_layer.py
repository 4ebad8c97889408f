"""Test-time training layer (Sun et al. 2024, Learning to (Learn at Test Time): RNNs with Expressive Hidden States).

    k, v, q = k_proj(x), v_proj(x), q_proj(x)        gate = sigmoid(rate_proj(x))
    in mini-batches of Z tokens:  W_t = W_{t-1} - inner_lr gate_t grad_W |f(k_t; W') - v_t|^2,  W' before the mini-batch
    y_t = f(q_t; W_t)                                 out = o_proj(y)

Each head has an inner model f(x; W) = x + LN(g(x; W)), g linear or a perceptron with one hidden layer of `hidden`
features and gelu. W of an empty sequence is a parameter, as are the scale and offset of LN. op_ttt.py has the exact
rule, also for more passes over a mini-batch and for adamw. Nothing here rotates: order is in the updates.

B batch, T tokens, D d_model, H heads of P = head_dim features, N mini-batches of Z slots, G = B H.
"""

import torch
from torch import nn

from .context import Context
from .initial import Constant, Init
from .initial import Rule as Start
from .op_minibatch import Arrangement, arrange
from .op_precision import own_precision, wide
from .op_ttt import Memory, Tokens, fresh_memory, learn
from .op_ttt_layers import Rule

State = dict[str, torch.Tensor]


class Mixer(nn.Module):
    """Input and output `[B, T, D]`; the inner model is at least float32.

    State, I -> O layer i of g with a last input of 1: `Wi` `[B, H, I, O]`, and of adamw `mi`, `vi` `[B, H, I, O]` and
    `ni` `[B, H, 1, 1]`, when the open mini-batch began; `Gi` `[B, H, k, I, O]`, the sums of gradients of its tokens;
    `filled` `[B]`, how many they are.
    """

    def __init__(
        self,
        config,
        layer_idx: int,
        *,
        heads: int,
        head_dim: int,
        inner_model: str,
        hidden: int | None,
        inner_optimizer: str,
        inner_lr: float,
        inner_steps_per_token: int,
        mini_batch: int,
    ):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.heads, self.head_dim, self.mini_batch = heads, head_dim, mini_batch
        self.rule = Rule(inner_optimizer, inner_lr, inner_steps_per_token, config.rms_norm_eps)
        self.names = ("W",) if inner_optimizer == "sgd" else ("W", "m", "v", "n")
        d_model, width = config.hidden_size, heads * head_dim
        self.q_proj = nn.Linear(d_model, width, bias=False)
        self.k_proj = nn.Linear(d_model, width, bias=False)
        self.v_proj = nn.Linear(d_model, width, bias=False)
        self.rate_proj = nn.Linear(d_model, heads)
        self.o_proj = nn.Linear(width, d_model, bias=False)
        self.o_proj.to_residual = True
        sizes = [head_dim, head_dim] if inner_model == "linear" else [head_dim, hidden, head_dim]
        self.layers = range(1, len(sizes))
        for i in self.layers:
            setattr(self, f"W{i}", nn.Parameter(torch.empty(heads, sizes[i - 1], sizes[i])))
            setattr(self, f"b{i}", nn.Parameter(torch.empty(heads, sizes[i])))
        self.norm_weight = nn.Parameter(torch.empty(heads, head_dim))
        self.norm_bias = nn.Parameter(torch.empty(heads, head_dim))

    def initial(self, init: Init) -> dict[str, Start]:
        weights = {f"W{i}": init.matrix(getattr(self, f"W{i}").shape[1]) for i in self.layers}
        biases = {f"b{i}": Constant(0.0) for i in self.layers}
        return weights | biases | {"norm_weight": Constant(1.0), "norm_bias": Constant(0.0)}

    def forward(self, x: torch.Tensor, context: Context, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, k, v = (wide(proj(x)).unflatten(-1, (self.heads, -1)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        gate = wide(self.rate_proj(x)).sigmoid()[..., None]
        if context.keep is not None:
            gate = gate.masked_fill(~context.keep[..., None, None], 0.0)
        seats = arrange(context, self.mini_batch, None if state is None else state["filled"])
        few = len(seats.slots[0]) == 1 and x.shape[1] <= self.mini_batch  # in one mini-batch nothing has to move
        with own_precision(x.device):
            tokens = (t[:, None] if few else seats.gather(t) for t in (k, v - k, q, gate))
            tokens = Tokens(*(t.permute(1, 0, 3, 2, 4).flatten(1, 2) for t in tokens))  # [N, G, Z, *]
            y, memory = self._learn(tokens, seats, context, state)
        y = y.unflatten(1, (-1, self.heads)).permute(1, 0, 3, 2, 4)  # [B, N, Z, H, P]
        y = (y[:, 0] if few else seats.scatter(y)).flatten(2)
        return self.o_proj(y.to(x.dtype)), self._state(memory, seats) if context.use_cache else None

    def _learn(self, tokens: Tokens, seats: Arrangement, context: Context, state: State | None):
        """Outputs `[N, G, Z, P]` and the memory after them."""
        rows, size = len(seats.slots), self.mini_batch
        norm = tuple(self._by_row(p[:, None], rows, tokens.k) for p in (self.norm_weight, self.norm_bias))
        parts = (torch.cat((getattr(self, f"W{i}"), getattr(self, f"b{i}")[:, None]), 1) for i in self.layers)
        start = fresh_memory(self.rule, tuple(self._by_row(p, rows, tokens.k) for p in parts))
        fresh = None if context.starts is None else self._by_head(seats.fresh)
        whole = context.positions.shape[1] // size  # mini-batches
        complete = [n < whole for n in range(len(tokens.k))] if seats.dense else self._by_head(seats.mask[..., -1])
        memory = start if state is None else self._memory(state)
        return learn(self.rule, norm, tokens, memory, start, fresh, complete)

    def _by_row(self, parameter: torch.Tensor, rows: int, like: torch.Tensor) -> torch.Tensor:
        """`[H, *, *]` -> `[G, *, *]` in the dtype of the inner model."""
        return parameter.to(like.dtype).repeat(rows, 1, 1)

    def _by_head(self, flags: torch.Tensor) -> torch.Tensor:
        """`[B, N]` -> `[N, G, 1, 1]`."""
        return flags.mT.repeat_interleave(self.heads, 1)[..., None, None]

    def _memory(self, state: State) -> Memory:
        held = (tuple(state[f"{name}{i}"].flatten(0, 1) for name in self.names) for i in self.layers)
        return Memory(tuple(held), tuple(state[f"G{i}"].flatten(0, 1) for i in self.layers))

    def _state(self, memory: Memory, seats: Arrangement) -> State:
        flat = {f"G{i}": sums for i, sums in zip(self.layers, memory.pending, strict=True)}
        for i, held in zip(self.layers, memory.held, strict=True):
            flat |= {f"{name}{i}": t for name, t in zip(self.names, held, strict=True)}
        return {name: t.unflatten(0, (-1, self.heads)) for name, t in flat.items()} | {"filled": seats.filled}

"""Multi-scale retention (Sun et al. 2023, Retentive Network, sections 2.1 and 2.2; equations 5 to 8).

    q_t, k_t, v_t, g_t = W_q x_t, W_k x_t / sqrt(E), W_v x_t, W_g x_t      q and k turned by their place in the document
    S_t = gamma_h S_{t-1} + k_t^T v_t      y_t = q_t S_t        each head, gamma_h = 1 - 2^(-5-h), h = 0, 1, ...
    out_t = W_o (silu(g_t) * norm(y_t))

The norm is the paper's GroupNorm_h as its authors' code has it: each head's P features divided by their root mean
square, with no weights. It undoes any factor on y_t, so the three factors by which that code keeps its numbers small
("retention score normalization") are left out: everything between q, k, v and the norm is float32 here.

B batch, T tokens, D d_model, H query heads, G key-value heads, E features of a key, P of a value.
"""

import math
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .op_precision import wide
from .op_retention import retention
from .op_rope import rotary, rotate

State = dict[str, torch.Tensor]


class PlainRope:
    """The rotation of a model whose positions are not rotary, named as in a configuration."""

    rope_parameters: ClassVar = {"rope_type": "default", "rope_theta": 10000.0}
    max_position_embeddings = None


class Mixer(nn.Module):
    """Input and output `[B, T, D]`. State: `retention` `[B, H, E, P]`, at least float32.

    `kv_heads` divides `heads`: the query heads of a group read the same keys and values, each with its own decay.
    `chunkwise` False takes all tokens of a call as one chunk. `rope` turns q and k as the model's `rope_parameters`
    say, or with the base 10000 where its positions are not rotary.
    """

    def __init__(
        self,
        config,
        layer_idx: int,
        *,
        heads: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        chunkwise: bool,
        chunk_size: int,
        rope: bool,
    ):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.heads, self.key_dim, self.value_dim = heads, key_dim, value_dim
        self.chunk_size, self.rope = chunk_size if chunkwise else None, rope
        d_model = config.hidden_size
        self.q_proj = nn.Linear(d_model, heads * key_dim, bias=False)
        self.k_proj = nn.Linear(d_model, kv_heads * key_dim, bias=False)
        self.v_proj = nn.Linear(d_model, kv_heads * value_dim, bias=False)
        self.g_proj = nn.Linear(d_model, heads * value_dim, bias=False)
        self.out_proj = nn.Linear(heads * value_dim, d_model, bias=False)
        self.out_proj.to_residual = True

    def forward(self, x: torch.Tensor, context: Context, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, k = (wide(p(x)).unflatten(-1, (-1, self.key_dim)) for p in (self.q_proj, self.k_proj))
        v = wide(self.v_proj(x)).unflatten(-1, (-1, self.value_dim))
        k = k * self.key_dim**-0.5
        if self.rope:
            cos, sin = self._angles(context, q.dtype)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y, last = retention(
            q,
            k,
            v,
            self._log_decay(q),
            self.chunk_size or x.shape[1],
            state["retention"] if state is not None else None,
            context.keep,
            context.starts,
        )
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        out = self.out_proj(F.silu(self.g_proj(x)) * y.flatten(2).to(x.dtype))
        return out, {"retention": last} if context.use_cache else None

    def _log_decay(self, like: torch.Tensor) -> torch.Tensor:
        """log(1 - 2^(-5-h)) `[H]`, as precise for a late head, whose gamma rounds to 1, as for the first."""
        return like.new_tensor([math.log1p(-(2.0 ** (-5 - h))) for h in range(self.heads)])

    def _angles(self, context: Context, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the places of this call."""
        if self.config.positional == "rope":
            return rotary(self.config, context, context.positions, self.key_dim, dtype, "now")
        return rotary(PlainRope, context, context.positions, self.key_dim, dtype, "retention")

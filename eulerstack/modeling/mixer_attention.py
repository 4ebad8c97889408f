"""Causal self-attention with any number of key-value heads.

Reference: Vaswani et al. 2017, section 3.2; Shazeer 2019 (one key-value head) and Ainslie et al. 2023 (grouped).

    q_t = n(W_q x_t), k_t = n(W_k x_t), v_t = W_v x_t, each turned by its place where rope is used
    y_t = W_o sum_{j visible} softmax_j(scale q_t . k_j) v_j        sinks: op_sinks.py

B batch, T tokens of the call, K keys held, H query heads, G key-value heads, D head dim, M model width.
State: keys and values [B, K, G, D] of the past, keys already normed and turned; a window keeps its newest window - 1.
"""

import torch
from torch import nn

from .context import Context
from .op_attention import SoftmaxAttention, head_norm, output_projection
from .op_mask import retain


class Mixer(SoftmaxAttention):
    """`n_kv_heads` divides `n_heads`; `window` is None for global attention; the rest as the preset language says."""

    def __init__(
        self,
        config,
        layer_idx: int,
        *,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        qkv_bias: bool,
        o_bias: bool,
        qk_norm: str,
        **shared,
    ):
        super().__init__(config, layer_idx, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, **shared)
        self.q_proj = nn.Linear(config.hidden_size, n_heads * head_dim, bias=qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, n_kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, n_kv_heads * head_dim, bias=qkv_bias)

        self.q_norm, self.k_norm = (head_norm(qk_norm, n, head_dim, config.rms_norm_eps) for n in (n_heads, n_kv_heads))
        self.o_proj = output_projection(config, n_heads * head_dim, o_bias)

    def forward(self, x: torch.Tensor, context: Context, state: dict[str, torch.Tensor] | None = None):
        """[B, T, M] -> (y [B, T, M], new state or None)."""
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q = self.rotated(self.q_norm(q), context, held=False)
        k = self.rotated(self.k_norm(k), context, held=False)
        if state is not None:
            k, v = torch.cat((state["keys"], k), 1), torch.cat((state["values"], v), 1)
        y = self.o_proj(self.attend(q, k, v, context).flatten(2))
        if not context.use_cache:
            return y, None
        reach = self.window.reach
        return y, {"keys": retain(k, context, reach), "values": retain(v, context, reach)}

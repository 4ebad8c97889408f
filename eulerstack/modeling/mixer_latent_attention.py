"""Causal self-attention whose keys and values are read from one joint latent vector per token.

Reference: DeepSeek-AI 2024, DeepSeek-V2, section 2.1.2 (low-rank joint compression), without a separate rotary part.

    c_t = norm(W_down x_t)                   the latent, all that is cached
    k_t = n(W_kup c_t), v_t = W_vup c_t      then as in mixer_attention.py

B batch, T tokens of the call, K keys held, H query heads, G key-value heads, D head dim, L latent width, M model width.
State: latent [B, K, L] of the past; a window keeps its newest window - 1.
"""

import torch
from torch import nn

from .context import Context
from .norm import RMSNorm
from .op_attention import SoftmaxAttention
from .op_mask import retain


class Mixer(SoftmaxAttention):
    """`latent_dim` is L; rope turns q and the expanded k, so the cached latent has no place in it."""

    def __init__(
        self,
        config,
        layer_idx: int,
        *,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        qkv_bias: bool,
        latent_dim: int,
        **shared,
    ):
        super().__init__(config, layer_idx, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, **shared)
        self.q_proj = nn.Linear(config.hidden_size, n_heads * head_dim, bias=qkv_bias)
        self.kv_down = nn.Linear(config.hidden_size, latent_dim, bias=qkv_bias)
        self.kv_norm = RMSNorm(latent_dim, config.rms_norm_eps)
        self.k_up = nn.Linear(latent_dim, n_kv_heads * head_dim, bias=False)
        self.v_up = nn.Linear(latent_dim, n_kv_heads * head_dim, bias=False)

    def project(self, x: torch.Tensor, context: Context, state: dict[str, torch.Tensor] | None):
        latent = self.kv_norm(self.kv_down(x))
        if state is not None:
            latent = torch.cat((state["latent"], latent), 1)
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)) for t in (self.q_proj(x), self.k_up(latent), self.v_up(latent)))
        q = self.rotated(self.normed(q, "q_norm"), context, held=False)
        k = self.rotated(self.normed(k, "k_norm"), context, held=True)
        if not context.use_cache:
            return q, k, v, None
        return q, k, v, {"latent": retain(latent, context, self.window.reach)}

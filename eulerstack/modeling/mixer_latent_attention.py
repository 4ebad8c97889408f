"""Causal self-attention whose keys and values are read from one joint latent vector per token.

Reference: DeepSeek-AI 2024, DeepSeek-V2, section 2.1.2 (low-rank joint compression), without a separate rotary part.

    c_t = norm(W_down x_t)                   the latent, all that is cached
    k_t = n(W_kup c_t), v_t = W_vup c_t      then as in mixer_attention.py

Rope turns the rebuilt keys, each by its place, and so does their norm n change them: with either, keys must be rebuilt
in every call. With neither, decoding absorbs them (op_latent.py).

B batch, T tokens of the call, K keys held, H query heads, G key-value heads, D head dim, L latent width, M model width.
State: latent [B, K, L] of the past; a window keeps its newest window - 1.
"""

import torch
from torch import nn

from .context import Context
from .norm import RMSNorm
from .op_attention import head_norm, output_projection
from .op_latent import LatentAttention


class Mixer(LatentAttention):
    """`latent_dim` is L; the rest as the preset language says."""

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
        latent_dim: int,
        **shared,
    ):
        super().__init__(config, layer_idx, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, **shared)
        self.sizes = (latent_dim, head_dim, 0, head_dim)
        self.absorbable = config.positional != "rope" and qk_norm == "none"
        self.q_proj = nn.Linear(config.hidden_size, n_heads * head_dim, bias=qkv_bias)
        self.kv_down = nn.Linear(config.hidden_size, latent_dim, bias=qkv_bias)
        self.kv_norm = RMSNorm(latent_dim, config.rms_norm_eps)
        self.k_up = nn.Linear(latent_dim, n_kv_heads * head_dim, bias=False)
        self.v_up = nn.Linear(latent_dim, n_kv_heads * head_dim, bias=False)
        self.q_norm, self.k_norm = (head_norm(qk_norm, n, head_dim, config.rms_norm_eps) for n in (n_heads, n_kv_heads))
        self.o_proj = output_projection(config, n_heads * head_dim, o_bias)

    def queries(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        q = self.q_proj(x).unflatten(-1, (self.n_heads, -1))
        return self.rotated(self.q_norm(q), context, held=False)

    def latents(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        return self.kv_norm(self.kv_down(x))

    def keys(self, held: torch.Tensor, context: Context) -> torch.Tensor:
        k = self.k_up(held).unflatten(-1, (self.n_kv_heads, -1))
        return self.rotated(self.k_norm(k), context, held=True)

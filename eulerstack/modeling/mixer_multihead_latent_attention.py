"""Multi-head latent attention: keys and values from one latent per token, their place in a part of its own.

Reference: DeepSeek-AI 2024, DeepSeek-V2, section 2.1, equations 37 to 47; the same in DeepSeek-V3, section 2.1.1.

    [c_t, r_t] = W_down x_t, c_t = norm(c_t)                 the latent, and the rotary key r that all heads share
    q_t = W_q x_t, or W_qup norm(W_qdown x_t)                each head [q^n, q^r]
    k_t = [W_kup c_t, rope(r_t)], v_t = W_vup c_t            y_t = W_o softmax(scale [q^n, rope(q^r)] . k) v

Nothing stands between W_kup c and its product with q^n, so decoding absorbs it (op_latent.py). Rope pairs the first and
second half of a rotary part; DeepSeek's checkpoints hold the pairs side by side.

B batch, T tokens of the call, K keys held, H query heads, G key-value heads, M model width, L latent width, N width of
the part of q and k without a place, R of the rotary part, V of a value.
State: latent [B, K, L + R] of the past, the rotary key already turned; a window keeps its newest window - 1.
"""

import torch
from torch import nn

from .context import Context
from .norm import RMSNorm
from .op_attention import output_projection
from .op_latent import LatentAttention
from .op_rope import rotary, rotate, scale_of_decoupled_heads


class Mixer(LatentAttention):
    """`latent_dim` is L, `qk_nope_dim` N, `qk_rope_dim` R (0 without rope), `v_head_dim` V and `head_dim` N + R;
    `q_latent_dim` None reads q from x itself."""

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
        scale: float,
        latent_dim: int,
        q_latent_dim: int | None,
        qk_nope_dim: int,
        qk_rope_dim: int,
        v_head_dim: int,
        **shared,
    ):
        scale = scale * scale_of_decoupled_heads(config)
        heads = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
        super().__init__(config, layer_idx, scale=scale, **heads, **shared)
        self.sizes, self.absorbable = (latent_dim, qk_nope_dim, qk_rope_dim, v_head_dim), True
        d, eps = config.hidden_size, config.rms_norm_eps
        self.q_latent_dim = q_latent_dim
        if q_latent_dim is None:
            self.q_proj = nn.Linear(d, n_heads * head_dim, bias=qkv_bias)
        else:
            self.q_down = nn.Linear(d, q_latent_dim, bias=qkv_bias)
            self.q_down_norm = RMSNorm(q_latent_dim, eps)
            self.q_up = nn.Linear(q_latent_dim, n_heads * head_dim, bias=False)
        self.kv_down = nn.Linear(d, latent_dim + qk_rope_dim, bias=qkv_bias)
        self.kv_norm = RMSNorm(latent_dim, eps)
        self.k_up = nn.Linear(latent_dim, n_kv_heads * qk_nope_dim, bias=False)
        self.v_up = nn.Linear(latent_dim, n_kv_heads * v_head_dim, bias=False)
        self.o_proj = output_projection(config, n_heads * v_head_dim, o_bias)

    def queries(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        q = self.q_proj(x) if self.q_latent_dim is None else self.q_up(self.q_down_norm(self.q_down(x)))
        return self._turned(q.unflatten(-1, (self.n_heads, -1)), context)

    def latents(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        latent, _, r, _ = self.sizes
        latent, key = self.kv_down(x).split((latent, r), -1)
        return torch.cat((self.kv_norm(latent), self._turned(key[:, :, None], context)[:, :, 0]), -1)

    def keys(self, held: torch.Tensor, context: Context) -> torch.Tensor:
        latent, _, r, _ = self.sizes
        k = self.k_up(held[..., :latent]).unflatten(-1, (self.n_kv_heads, -1))
        return torch.cat((k, held[:, :, None, latent:].expand(-1, -1, self.n_kv_heads, r)), -1)

    def _turned(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        """The last R features of `x` [B, T, H, ...] turned to the places of the call."""
        r = self.sizes[2]
        if not r:
            return x
        turn = rotary(self.config, context, context.positions, r, x.dtype, "now", whole=True)
        return rotate(x, *turn, start=x.shape[-1] - r)

"""Attention over one joint latent per token, in two orders of the same products.

Reference: DeepSeek-AI 2024, DeepSeek-V2, section 2.1.2 and its remark on absorbing W_UK and W_UV.

    expanded   k_j = W_k c_j, v_j = W_v c_j,  then attention as ever
    absorbed   q_t . W_k c_j = (W_k^T q_t) . c_j  and  sum_j p_j W_v c_j = W_v (sum_j p_j c_j)

The expanded order builds keys and values of every token held, the absorbed one works on the latents themselves, as one
key-value head of that width; few queries on a long past are cheaper absorbed.

B batch, T queries, K keys held, H query heads, G key-value heads, M model width, L latent width, N width of the part of
a key that is read from the latent, R of its other part, V of a value.
"""

import torch
from torch import nn

from .context import Context
from .op_attention import SoftmaxAttention
from .op_mask import retain


class LatentAttention(SoftmaxAttention):
    """A subclass has `k_up` [G N, L], `v_up` [G V, L] and `o_proj`, sets `sizes` and `absorbable`, and defines
    `queries`, `latents`, `keys` and, where it can absorb, `absorbed`. Its state is what `latents` gives, [B, K, L + R].
    """

    sizes: tuple[int, int, int, int]  # L, N, R, V
    absorbable: bool  # whether no norm or rotation stands between W_k c and the product with q

    def queries(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        """[B, T, M] -> [B, T, H, N + R]."""
        raise NotImplementedError

    def latents(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        """[B, T, M] -> [B, T, L + R], all that is kept of a token."""
        raise NotImplementedError

    def keys(self, held: torch.Tensor, context: Context) -> torch.Tensor:
        """[B, K, L + R] -> [B, K, G, N + R]."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor, context: Context, state: dict[str, torch.Tensor] | None = None):
        """[B, T, M] -> (y [B, T, M], new state or None)."""
        q, held = self.queries(x, context), self.latents(x, context)
        if state is not None:
            held = torch.cat((state["latent"], held), 1)
        bare = is_bare(self.k_up) and is_bare(self.v_up)
        if self.absorbable and bare and self.absorbing_is_cheaper(q.shape[1], held.shape[1]):
            y = self.attend_absorbed(q, held, context)
        else:
            y = self.attend_expanded(q, held, context)
        y = self.o_proj(y.flatten(2))
        return y, ({"latent": retain(held, context, self.window.reach)} if context.use_cache else None)

    def absorbing_is_cheaper(self, t: int, k: int) -> bool:
        """Whether `t` queries on `k` keys take fewer multiplications absorbed."""
        latent, n, r, v = self.sizes
        expanded = k * self.n_kv_heads * latent * (n + v) + t * k * self.n_heads * (n + r + v)
        absorbed = t * self.n_heads * latent * (n + v) + t * k * self.n_heads * (2 * latent + r)
        return absorbed < expanded

    def attend_expanded(self, q: torch.Tensor, held: torch.Tensor, context: Context) -> torch.Tensor:
        v = self.v_up(held[..., : self.sizes[0]]).unflatten(-1, (self.n_kv_heads, -1))
        return self.attend(q, self.keys(held, context), v, context)

    def attend_absorbed(self, q: torch.Tensor, held: torch.Tensor, context: Context) -> torch.Tensor:
        """The latents as the one key of all heads, and their first L numbers as its value."""
        latent, n, _, _ = self.sizes
        q = torch.cat((_each_group(q[..., :n], self._by_group(self.k_up)), q[..., n:]), -1)
        y = self.attend(q, held[:, :, None], held[:, :, None, :latent], context, plain=True)
        return _each_group(y, self._by_group(self.v_up).transpose(1, 2))

    def _by_group(self, up: nn.Linear) -> torch.Tensor:
        return getattr(up, "weight_in_use", up.weight).unflatten(0, (self.n_kv_heads, -1))


def is_bare(linear: nn.Module) -> bool:
    """Whether its weight is all that a call of it means: no adapter, quantiser, hook or offloader stands around it."""
    hooked = linear._forward_pre_hooks or linear._forward_hooks or "forward" in vars(linear)
    return type(linear) is nn.Linear and not hooked


def _each_group(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """`x` [B, T, H, I] times the matrix [I, O] of the head's group, of `matrices` [G, I, O]: [B, T, H, O]."""
    groups = x.unflatten(2, (len(matrices), -1))
    return torch.einsum("btgri,gio->btgro", groups, matrices).flatten(2, 3)

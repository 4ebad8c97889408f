"""Attention over one joint latent per token, in two orders of the same products.

Reference: DeepSeek-AI 2024, DeepSeek-V2, section 2.1.2 and its remark on absorbing W_UK and W_UV.

    expanded   k_j = W_k c_j, v_j = W_v c_j,  then attention as ever
    absorbed   q_t . W_k c_j = (W_k^T q_t) . c_j  and  sum_j p_j W_v c_j = W_v (sum_j p_j c_j)

The expanded order builds keys and values of every token held, the absorbed one works on the latents themselves, as one
key-value head of that width; few queries on a long past are cheaper absorbed.

B batch, T queries, K keys held, H query heads, G key-value heads, M model width, L latent width, N width of the part of
a key that is read from the latent, R of its other part, V of a value.
"""

from abc import ABC, abstractmethod

import torch

from .context import Context
from .op_attention import SoftmaxAttention
from .op_linear import matrix_of
from .op_mask import retain


class LatentAttention(SoftmaxAttention, ABC):
    """A subclass has `k_up` [G N, L], `v_up` [G V, L] and `o_proj`, sets `sizes` and `absorbable`, and defines
    `queries`, `latents` and `keys`. Its state is what `latents` gives, [B, K, L + R].
    """

    sizes: tuple[int, int, int, int]  # L, N, R, V
    absorbable: bool  # whether no norm or rotation stands between W_k c and the product with q

    @abstractmethod
    def queries(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        """[B, T, M] -> [B, T, H, N + R]."""

    @abstractmethod
    def latents(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        """[B, T, M] -> [B, T, L + R], all that is kept of a token."""

    @abstractmethod
    def keys(self, held: torch.Tensor, context: Context) -> torch.Tensor:
        """[B, K, L + R] -> [B, K, G, N + R]."""

    def forward(self, x: torch.Tensor, context: Context, state: dict[str, torch.Tensor] | None = None):
        """[B, T, M] -> (y [B, T, M], new state or None)."""
        q, held = self.queries(x, context), self.latents(x, context)
        if state is not None:
            held = torch.cat((state["latent"], held), 1)
        absorbs = self.absorbable and self.absorbing_is_cheaper(q.shape[1], held.shape[1])
        matrices = [matrix_of(up) for up in (self.k_up, self.v_up)] if absorbs else [None]
        if all(matrix is not None for matrix in matrices):
            y = self.attend_absorbed(q, held, context, *matrices)
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

    def attend_absorbed(self, q: torch.Tensor, held: torch.Tensor, context: Context, k_up, v_up) -> torch.Tensor:
        """The latents as the one key of all heads, and their first L numbers as its value; k_up [G N, L], v_up [G V, L]
        are the matrices."""
        latent, n, _, _ = self.sizes
        k_up, v_up = (up.unflatten(0, (self.n_kv_heads, -1)) for up in (k_up, v_up))
        q = torch.cat((_each_group(q[..., :n], k_up), q[..., n:]), -1)
        y = self.attend(q, held[:, :, None], held[:, :, None, :latent], context, plain=True)
        return _each_group(y, v_up.mT)


def _each_group(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """`x` [B, T, H, I] times the matrix [I, O] of the head's group, of `matrices` [G, I, O]: [B, T, H, O]."""
    groups = x.unflatten(2, (len(matrices), -1))
    return torch.einsum("btgri,gio->btgro", groups, matrices).flatten(2, 3)

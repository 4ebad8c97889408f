"""The delta rule over time (Schlag et al. 2021, section 4.2), in chunks of tokens (Yang et al. 2024, section 3).

    S_t = S_{t-1} + b_t (v_t - S_{t-1} k_t) k_t^T        y_t = S_t q_t

Within a chunk the writes u_t = b_t (v_t - S_{t-1} k_t) follow from one triangular system, (I + A) u = b (v - S_0 k)
with A_ts = b_t k_t . k_s for s < t; then reading is a masked attention, and only the chunks are a recurrence. A chunk
of one token is the recurrence itself.

B batch, T tokens, H heads, N features of a key, P of a value, n chunks of L tokens.
"""

import math

import torch
from torch.nn import functional as F

from .op_precision import own_precision, wide

CHUNK = 64  # tokens; does not change the result


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    b: torch.Tensor,
    start: torch.Tensor,
    before: torch.Tensor | None = None,
    resets: torch.Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads y `[B, T, H, P]` and the last S `[B, H, P, N]`, in float32, or in float64 when `q` is.

    `q`, `k` `[B, T, H, N]`, `v` `[B, T, H, P]`, `b` `[B, T, H]` (0 writes nothing), `start` `[H, P, N]`, `before` the S
    that is continued (None: `start`), `resets` `[B, T]` bool, True where S goes back to `start` before the token.

    S - start follows the same rule with values v - start k, and goes back to zero.
    """
    with own_precision(q.device):
        q, k, v, b, start = (wide(t) for t in (q, k, v, b, start))
        first = torch.einsum("hpn,bthn->bthp", start, q)
        v = v - torch.einsum("hpn,bthn->bthp", start, k)
        moved = q.new_zeros(len(q), *start.shape) if before is None else before.to(q.dtype) - start
        y, moved = _from_zero(q, k, v, b, moved, resets, chunk)
        return first + y, start + moved


def _from_zero(q, k, v, b, moved, resets, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = q.shape[1]
    n = math.ceil(tokens / chunk)
    length = math.ceil(tokens / n)
    q, k, v, b = (_chunks(t, n, length).movedim(3, 1) for t in (q, k, v, b[..., None]))  # [B, H, n, L, *]
    lower = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    entering = leaving = None
    if resets is not None:
        document = _chunks(resets, n, length).cumsum(2)[:, None]  # [B, 1, n, L], counted in each chunk
        lower = lower & (document[..., :, None] == document[..., None, :])
        entering, leaving = (document == 0)[..., None], (document == document[..., -1:])[..., None]

    kb = k * b
    before, weights = _masked(kb, entering), (q @ k.mT) * lower
    system = (kb @ k.mT) * lower  # its diagonal is taken as one
    writes, corrections = torch.linalg.solve_triangular(
        system, torch.cat((v * b, before), -1), upper=False, unitriangular=True
    ).split((v.shape[-1], k.shape[-1]), -1)
    q, k = _masked(q, entering), _masked(k, leaving)
    reads = []
    for i in range(n):
        u = writes[:, :, i] - corrections[:, :, i] @ moved.mT  # [B, H, L, P]
        reads.append(q[:, :, i] @ moved.mT + weights[:, :, i] @ u)
        kept = moved if entering is None else moved * entering[:, :, i, -1:]
        moved = kept + u.mT @ k[:, :, i]
    return torch.cat(reads, 2)[:, :, :tokens].transpose(1, 2), moved


def _chunks(x: torch.Tensor, n: int, length: int) -> torch.Tensor:
    """`[B, T, *]` -> `[B, n, L, *]`, zeros behind the last token."""
    spare = n * length - x.shape[1]
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, spare)).unflatten(1, (n, length))


def _masked(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return x if mask is None else x * mask

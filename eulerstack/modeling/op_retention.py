"""Retention (Sun et al. 2023, Retentive Network, section 2.1): one equation in three forms.

    S_t = gamma S_{t-1} + k_t^T v_t        y_t = q_t S_t                                        recurrent
        = sum over s <= t of gamma^(t-s) (q_t . k_s) v_s  +  gamma^(t+1) q_t S_before           parallel, chunkwise

gamma is one number per head. t - s counts the real tokens of a document: padding does not age the state, and a new
document finds none.

B batch, T tokens in N chunks of L, H query heads, of which R share one of the G key-value heads (H = G R), E features
of a key, P of a value. B' is B, or 1 where all rows are alike.
"""

import math

import torch
from torch.nn import functional as F

from .op_precision import own_precision


def retention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    chunk_size: int,
    before: torch.Tensor | None = None,
    keep: torch.Tensor | None = None,
    resets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs `[B, T, H, P]` and the last state `[B, H, E, P]`.

    `q` `[B, T, H, E]`, `k` `[B, T, G, E]` and `v` `[B, T, G, P]` of one dtype, at least float32; `log_decay` `[H]`, the
    logarithms of gamma; `before` `[B, H, E, P]` or None for zeros; `keep` `[B, T]` bool, False on padding, whose
    outputs mean nothing; `resets` `[B, T]` bool, True where the state is cleared before the token. `chunk_size` does
    not change the result: T or more is the parallel form, and a single token takes the recurrent one.
    """
    if keep is not None:
        k = k.masked_fill(~keep[..., None, None], 0.0)
    heads, groups = q.shape[2], k.shape[2]
    state = q.new_zeros(q.shape[0], heads, q.shape[-1], v.shape[-1]) if before is None else before.to(q.dtype)
    q, state = q.unflatten(2, (groups, -1)), state.unflatten(1, (groups, -1))
    log_decay = log_decay.to(q.dtype).view(groups, -1)
    with own_precision(q.device):
        form = _step if q.shape[1] == 1 else _chunks
        y, state = form(q, k[:, :, :, None], v[:, :, :, None], log_decay, chunk_size, state, keep, resets)
    return y.flatten(2, 3), state.flatten(1, 2)


def _step(q, k, v, log_decay, chunk_size, state, keep, resets):
    """The recurrent form of one token. q `[B, 1, G, R, E]`, k and v with R = 1, state `[B, G, R, E, P]`."""
    q, k, v = q[:, 0], k[:, 0], v[:, 0]
    decay = log_decay.exp().expand(len(q), -1, -1)
    if keep is not None:
        decay = decay.where(keep[..., None], 1.0)
    if resets is not None:
        decay = decay * ~resets[..., None]
    state = state * decay[..., None, None] + k[..., None] * v[..., None, :]
    return (q[..., None, :] @ state)[:, None, ..., 0, :], state


def _chunks(q, k, v, log_decay, chunk_size, state, keep, resets):
    """The chunkwise form (equation 7), parallel within a chunk; all chunks at once but for the states between them.

    q `[B, T, G, R, E]`, k and v with R = 1, state `[B, G, R, E, P]`.
    """
    tokens = q.shape[1]
    chunk = math.ceil(tokens / math.ceil(tokens / chunk_size))
    within, entering, leaving = _decays(log_decay, chunk, tokens, keep, resets)
    q, k, v = (_split(t, chunk) for t in (q, k, v))  # [B, N, G, R, L, *]

    y = (q @ k.mT * within) @ v
    added = (k * leaving[..., None]).mT @ v
    states = []
    for n in range(q.shape[1]):
        states.append(state)
        state = torch.addcmul(added[:, n], state, entering[:, n, ..., -1:, None])
    y = y + (q * entering[..., None]) @ torch.stack(states, 1)
    return y.permute(0, 1, 4, 2, 3, 5).flatten(1, 2)[:, :tokens], state


def _split(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """`[B, T, G, R, *]` -> `[B, N, G, R, L, *]`, with zeros behind the last token."""
    x = F.pad(x, (0, 0, 0, 0, 0, 0, 0, -x.shape[1] % chunk))
    return x.unflatten(1, (-1, chunk)).permute(0, 1, 3, 4, 2, 5)


def _decays(log_decay, chunk: int, tokens: int, keep, resets):
    """Decay from token to token of a chunk `[B', N, G, R, L, L]` (row: to, column: from), from before the chunk to each
    token and from each token to its end `[B', N, G, R, L]`; 0 towards the past and across the border of a document."""
    count = torch.arange(1, tokens + 1, device=log_decay.device)[None] if keep is None else keep.cumsum(1)
    count, last = _by_chunk(count, chunk)
    past = torch.ones(chunk, chunk, dtype=torch.bool, device=count.device).tril()
    within = _power(log_decay, count[..., :, None] - count[..., None, :])
    entering = _power(log_decay, count - last[..., None])
    leaving = _power(log_decay, count[..., -1:] - count)
    if resets is not None:
        document, last = (d[:, :, None, None] for d in _by_chunk(resets.cumsum(1), chunk))
        past = past & (document[..., :, None] == document[..., None, :])
        entering = entering * (document == last[..., None])
        leaving = leaving * (document == document[..., -1:])
    return within * past, entering, leaving


def _by_chunk(number: torch.Tensor, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Running numbers `[B', T]` as `[B', N, L]`, the last one repeated behind the last token, and the number before
    each chunk `[B', N]`, 0 before the first."""
    more = -number.shape[1] % chunk
    number = torch.cat((number, number[:, -1:].expand(-1, more)), 1).unflatten(1, (-1, chunk))
    return number, F.pad(number[:, :-1, -1], (1, 0))


def _power(log_decay: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """gamma^distance `[B', N, G, R, *]` for `distance` `[B', N, *]`, not below about 1e-26 (1e-215 in float64): numbers
    that underflow are slow on a CPU. Below 0, where the mask forbids it, it is 1."""
    distance = distance[:, :, None, None].clamp(min=0).to(log_decay.dtype)
    exponent = distance * log_decay.view(*log_decay.shape, *[1] * (distance.dim() - 4))
    return exponent.clamp(min=0.7 * math.log(torch.finfo(exponent.dtype).tiny)).exp()

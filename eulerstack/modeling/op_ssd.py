"""State space duality, the scan of Mamba-2 (Dao & Gu 2024, Transformers are SSMs, section 6 and listing 1).

Each head has one decay a token, so that a chunk of tokens is a masked attention, and only the chunks are a recurrence:

    h_t = exp(e_t) h_{t-1} + x_t B_t^T        y_t = h_t C_t
        = sum over s <= t of exp(e_{s+1} + ... + e_t) (C_t . B_s) x_s  +  exp(e_1 + ... + e_t) h_0 C_t

B batch, T tokens, L tokens of a chunk, H heads in G groups that share B and C, P features of a head, N states of a
feature; K = H P / G features of a group.
"""

import math

import torch

from .op_chunks import ChunkRule, Tensors, scan_chunks
from .op_precision import wide


def _decays(exponents: torch.Tensor, resets: torch.Tensor | None) -> Tensors:
    """Decay from token to token `[B, H, L, L]` (row: to, column: from), and from before the chunk to token `[B, L, H]`.

    Sums over a stretch are differences of running sums; those are taken in float64 and split in a high and a low
    part, so that a difference keeps full precision far into a chunk. Documents are told apart by number: a decay
    across a border is 0 by mask, never through an infinite sum.
    """
    precise = torch.float32 if exponents.device.type == "mps" else torch.float64  # mps has no float64
    sums = exponents.cumsum(1, dtype=precise).mT
    high = sums.to(exponents.dtype)
    low = (sums - high).to(exponents.dtype)
    within = high[..., :, None] - high[..., None, :]
    within.add_(low[..., :, None]).sub_(low[..., None, :])
    length = exponents.shape[1]
    allowed = torch.ones(length, length, dtype=torch.bool, device=exponents.device).tril()
    entering = _exp(high.mT.clone())
    if resets is not None:
        document = resets.cumsum(1)
        allowed = (allowed & (document[:, :, None] == document[:, None]))[:, None]
        entering.masked_fill_(document[..., None] > 0, 0.0)
    return _exp(within).mul_(allowed), entering


def _exp(x: torch.Tensor) -> torch.Tensor:
    """exp(x) in place for x <= 0, not below about 1e-26 (1e-215 in float64): numbers that underflow are slow on a CPU.
    The sums above the diagonal, which the mask drops, are positive and must not overflow either."""
    return x.clamp_(0.7 * math.log(torch.finfo(x.dtype).tiny), 0.0).exp_()


def _grouped(x: torch.Tensor, groups: int) -> torch.Tensor:
    """`[B, L, H, P]` -> `[B, G, L, K]`."""
    return x.unflatten(2, (groups, -1)).flatten(3).transpose(1, 2)


def _by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """`[B, G, L, K]` -> `[B, L, H, P]`."""
    return x.transpose(1, 2).flatten(2).unflatten(2, (heads, -1))


def _weights(within: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Decays `[B, H, L, L]` times the scores `[B, G, L, L]` of each head's group."""
    return (within.unflatten(1, (scores.shape[1], -1)) * scores[:, :, None]).flatten(1, 2)


def _forward(inputs: Tensors, params: Tensors, resets, before) -> Tensors:
    x, exponents, B, C = inputs
    heads, groups = x.shape[2], B.shape[2]
    within, entering = _decays(exponents, resets)
    B, C = B.transpose(1, 2), C.transpose(1, 2)  # [B, G, L, N]
    leaving = within[:, :, -1].mT  # from token to the end of the chunk, [B, L, H]
    states = before.unflatten(1, (groups, -1)).flatten(2, 3)  # [B, G, K, N]

    y = (_weights(within, C @ B.mT) @ x.transpose(1, 2)).transpose(1, 2)
    y = y + _by_head(C @ states.mT, heads) * entering[..., None]
    added = _grouped(x * leaving[..., None], groups).mT @ B
    after = torch.addcmul(added.view_as(before), before, entering[:, -1, :, None, None])
    return y, after


def _backward(inputs: Tensors, params: Tensors, resets, before, dy, dafter) -> tuple:
    x, exponents, B, C = inputs
    heads, groups = x.shape[2], B.shape[2]
    within, entering = _decays(exponents, resets)
    B, C = B.transpose(1, 2), C.transpose(1, 2)
    leaving = within[:, :, -1].mT
    states, dstates = (s.unflatten(1, (groups, -1)).flatten(2, 3) for s in (before, dafter))

    # tokens of the chunk to one another
    scores = C @ B.mT
    weights = _weights(within, scores)
    dx = (weights.mT @ dy.transpose(1, 2)).transpose(1, 2)
    dweights = dy.transpose(1, 2) @ x.permute(0, 2, 3, 1)
    dscores = (dweights * within).unflatten(1, (groups, -1)).sum(2)
    through = weights.mul_(dweights)  # gradient of the sum of exponents from token to token
    dsums = (through.sum(-1) - through.sum(-2)).mT
    dB, dC = dscores.mT @ C, dscores @ B

    # the state before the chunk to its tokens
    dentered = dy * entering[..., None]
    dsums += (dentered * _by_head(C @ states.mT, heads)).sum(-1)
    dC += _grouped(dentered, groups) @ states
    dbefore = (_grouped(dentered, groups).mT @ C).view_as(before)

    # the tokens and the state before to the state after
    dleft = _by_head(B @ dstates.mT, heads) * leaving[..., None]
    dx = dx + dleft
    left = (dleft * x).sum(-1)
    kept = dafter * entering[:, -1, :, None, None]
    dsums -= left
    dsums[:, -1] += left.sum(1) + (kept * before).sum((-1, -2))
    dB += _grouped(x * leaving[..., None], groups) @ dstates
    dbefore = dbefore + kept

    dexponents = dsums.flip(1).cumsum(1).flip(1)  # an exponent is in the running sum of every later token
    return (dx, dexponents, dB.transpose(1, 2), dC.transpose(1, 2)), (), dbefore


_RULE = ChunkRule(_forward, _backward)


def ssd(
    x: torch.Tensor,
    exponents: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    initial: torch.Tensor | None = None,
    resets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs `[B, T, H, P]` and the last state `[B, H, P, N]`.

    `x` `[B, T, H, P]`, already times its step; `exponents` `[B, T, H]` <= 0 (0 with x = 0 leaves the state as it is);
    `B` and `C` `[B, T, G, N]`; `initial` `[B, H, P, N]` or None for zeros; `resets` `[B, T]` bool, True where the state
    is cleared before the token. All is computed in float32, or in float64 when `x` is. `chunk_size` does not change
    the result: T is cut in as few equal chunks as keep to it.
    """
    x = wide(x)
    exponents, B, C = (t.to(x.dtype) for t in (exponents, B, C))
    before = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[-1]) if initial is None else initial.to(x.dtype)
    tokens = x.shape[1]
    chunk = math.ceil(tokens / math.ceil(tokens / chunk_size))
    return scan_chunks(_RULE, (x, exponents, B, C), (), before, resets, chunk)

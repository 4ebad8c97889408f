"""A memory that is a network, written down the gradient of its surprise (Behrouz et al. 2025, Titans, section 3.1).

    M(k) = W2 silu(W1 k)                 surprise g_t = gradient over W1, W2 of |M(k_t) - v_t|^2
    S_t = n_t S_{t-1} - r_t g_t          M_t = a_t M_{t-1} + S_t          y_t = M_t(q_t)

Within a mini-batch of L tokens all gradients are taken at the weights before its first token (section 3.2). They are
products e f^T of vectors, so that with G_ij the share of g_j in M_i the weights of a token need never be formed:

    M_i = A_i M + B_i S - sum over j <= i of G_ij g_j
    W_i q = A_i W q + B_i S q - sum of G_ij e_j (f_j . q)

Gradients that are stale for L tokens and go on in the momentum overshoot where r is large. So g is damped by the step
that would just not: (1 - n) / (1 - n + L r c), where c bounds the curvature, c = 2 |f|^2 + 2 |dM / dh|^2 with h = W1 k,
f = silu(h). Where r is small this is one.

B batch, N mini-batches, L tokens of one, H features inside, P of keys and values.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class Shares:
    """What is in the weights and the momentum after each token of a mini-batch. Empty slots change neither."""

    past: torch.Tensor  # [B, N, 2, L]: A and B, of the weights and of the momentum before the mini-batch
    gradients: torch.Tensor  # [B, N, L, L]: G, row: after the token, column: of whose gradient
    mix: torch.Tensor  # [B, N, 2, 2]: weights and momentum after the last token, from those before the first
    last: torch.Tensor  # [B, N, 2, L]: gradients in weights and momentum after the last token


def shares(log_keep: torch.Tensor, log_inertia: torch.Tensor, rate: torch.Tensor, real: torch.Tensor) -> Shares:
    """From log a, log n and r, and which slots are filled, `[B, N, L]` each."""
    log_keep, log_inertia, rate = (t.masked_fill(~real, 0.0) for t in (log_keep, log_inertia, rate))
    inertia = _stretches(log_inertia)  # of a gradient in the momentum
    joined = _stretches(log_keep) * real[..., None, :]  # of the momentum of a token in the weights
    entered = log_inertia.cumsum(-1).exp()
    kept = log_keep.cumsum(-1).exp()
    moved = (joined @ entered[..., None])[..., 0]
    gradients = (joined @ inertia) * rate[..., None, :]
    weights = torch.stack((kept[..., -1], moved[..., -1]), -1)
    momentum = torch.stack((torch.zeros_like(kept[..., -1]), entered[..., -1]), -1)
    last = torch.stack((gradients[..., -1, :], inertia[..., -1, :] * rate), -2)
    return Shares(torch.stack((kept, moved), -2), gradients, torch.stack((weights, momentum), -2), last)


def _stretches(logs: torch.Tensor) -> torch.Tensor:
    """`[..., L]` -> `[..., L, L]`: the product of the factors after a token (column) up to another (row); 0 above."""
    sums = logs.cumsum(-1)
    length = logs.shape[-1]
    above = torch.ones(length, length, dtype=torch.bool, device=logs.device).triu(1)
    return (sums[..., :, None] - sums[..., None, :]).masked_fill(above, -torch.inf).exp()


def surprise(up, down, k, v, rate, slack) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The damped gradients of |M(k) - v|^2 as products: over W1 `inner` k^T and over W2 `outer` f^T; also f.

    `up` `[B, H, P]`, `down` `[B, P, H]`, `k`, `v` `[B, L, P]`, r and 1 - n `[B, L]` -> inner `[B, L, H]`, outer
    `[B, L, P]`, f `[B, L, H]`.
    """
    h = k @ up.mT
    gate = h.sigmoid()
    f = h * gate
    slope = gate + f * (1.0 - gate)
    widths = down.square().sum(1)  # [B, H]
    curvature = 2.0 * (f.square().sum(-1) + (slope.square() * widths[:, None]).sum(-1))
    damping = slack / (slack + k.shape[1] * rate * curvature)
    outer = 2.0 * (f @ down.mT - v) * damping[..., None]
    return (outer @ down) * slope, outer, f


def apply(net: torch.Tensor, x: torch.Tensor, past: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """Each token's own matrix times its x: `net` `[B, 2, O, I]` (weights and momentum before), `x` `[B, L, I]`, `past`
    `[B, 2, L]`, and `change` `[B, L, O]`, what the gradients take away."""
    return ((x[:, None] @ net.mT) * past[..., None]).sum(1) - change


def step(net: torch.Tensor, mix: torch.Tensor, last: torch.Tensor, e: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """Weights and momentum `[B, 2, O, I]` after a mini-batch with gradients e f^T, of e `[B, L, O]`, f `[B, L, I]`."""
    mixed = (mix @ net.flatten(2)).view_as(net)
    return mixed - (e[:, None] * last[..., None]).mT @ f[:, None]


def read_and_write(nets, anchors, tokens, share: tuple[torch.Tensor, ...]):
    """One mini-batch: reads `[B, L, P]` and the networks after it. `nets` and `anchors` are (up, down): `[B, 2, H, P]`
    and `[B, 2, P, H]` as they stand, `[B, H, P]` and `[B, P, H]` where gradients are taken; `tokens` are q, k, v
    `[B, L, P]`, r and 1 - n `[B, L]`; `share` the fields of Shares."""
    (up, down), (q, k, *rest), (past, gradients, mix, last) = nets, tokens, share
    inner, outer, f = surprise(*anchors, k, *rest)
    z = F.silu(apply(up, q, past, ((q @ k.mT) * gradients) @ inner))
    y = apply(down, z, past, ((z @ f.mT) * gradients) @ outer)
    return y, (step(up, mix, last, inner, k), step(down, mix, last, outer, f))

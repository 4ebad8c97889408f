"""Hyper-connections: n residual streams that a branch f reads as one, writes back to, and that mix beside it.

References: Zhu et al. 2024, Hyper-Connections, section 2 (unconstrained); Xie et al. 2025, mHC: Manifold-Constrained
Hyper-Connections, section 4, as in DeepSeek-V4 (birkhoff); learned_lowrank is ours.

    h   = sum_j pre_j x_j                       x'_k = sum_j mix[j, k] x_j + post_k f(h)

    birkhoff         z = W u of all streams together, u = rms(x_1 .. x_n)
                     pre = sigmoid(a_1 z_pre + b)     post = 2 sigmoid(a_2 z_post + b)
                     mix = sinkhorn(a_3 z_mix + b), doubly stochastic, so that it keeps the mean of the streams
    unconstrained    stream j for itself, u_j = rms(x_j)
                     pre_j = a_1 tanh(W u_j) + b      post_j = a_2 tanh(W u_j) + b      mix[j] = a_3 tanh(W u_j) + b
    learned_lowrank  pre, post likewise;  mix = 1 + left right,  left[j] = a_3 tanh(W u_j) + b, of rank max(1, n // 2)

The static part starts as the plain residual network: equal streams stay equal, as every column of mix sums to one (the
identity; birkhoff: of four streams each keeps 98 % of itself) and post is 1. What breaks the tie is pre, by which layer
l prefers stream l mod n. For birkhoff pre sums to 1, but for n = 1, where a sigmoid can only come near (0.95, which a
norm in front of the branch takes back).

B batch, T tokens, D d_model, n streams.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from .initial import Constant, Init, Normal, Rule, Sampled
from .op_precision import own_precision, wide
from .op_sinkhorn import sinkhorn

SCALE = 0.01  # of the dynamic part at the start (both papers)
STAY = 5.0  # logit by which a stream prefers itself at the start, birkhoff


class Residual(nn.Module):
    """The connection of one branch. `weight` makes the dynamic part, `bias` is the static one, `scale` is a_1 to a_3,
    for pre, post and mix. `sinkhorn_iters` is read by birkhoff alone. All of it is computed in float32 or wider."""

    def __init__(self, config, layer_idx: int, *, expand: int, mixing: str, sinkhorn_iters: int):
        super().__init__()
        if mixing not in ("birkhoff", "unconstrained", "learned_lowrank"):
            raise ValueError(f"unknown mixing {mixing!r}; one of birkhoff, unconstrained, learned_lowrank")
        n, d = expand, config.hidden_size
        self.n, self.mixing, self.sinkhorn_iters = n, mixing, sinkhorn_iters
        self.eps, self.favourite = config.rms_norm_eps, layer_idx % n
        rank = {"unconstrained": n, "learned_lowrank": max(1, n // 2)}.get(mixing, 0)
        if mixing == "birkhoff":
            self.weight = nn.Parameter(torch.empty(n * (n + 2), n * d))
            self.bias = nn.Parameter(torch.empty(n * (n + 2)))
        else:
            self.weight = nn.Parameter(torch.empty(2 + rank, d))
            self.bias = nn.Parameter(torch.empty(n, 2 + rank))
        self.scale = nn.Parameter(torch.empty(3))
        self.sizes = [n, n, n * n] if mixing == "birkhoff" else [1, 1, rank]
        if mixing == "learned_lowrank":
            self.right = nn.Parameter(torch.empty(rank, n))

    def initial(self, init: Init) -> dict[str, Rule]:
        start = self._start()
        rules = {"weight": init.matrix(self.weight.shape[1]), "scale": Constant(SCALE)}
        rules["bias"] = Sampled(lambda uniform: start.to(uniform.device))
        return rules | ({"right": Normal(1.0 / math.sqrt(self.n))} if self.mixing == "learned_lowrank" else {})

    def _start(self) -> torch.Tensor:
        """The static part of a new network."""
        own = torch.zeros(self.n)
        own[self.favourite] = 1.0
        if self.mixing == "birkhoff":
            share = min(0.5 + 0.5 / self.n, 0.95)
            pre = torch.where(own > 0, share, (1.0 - share) / max(1, self.n - 1)).logit()
            return torch.cat((pre, torch.zeros(self.n), STAY * torch.eye(self.n).flatten()))
        mix = torch.eye(self.n) if self.mixing == "unconstrained" else torch.zeros(self.n, self.sizes[2])
        return torch.cat((own[:, None], torch.ones(self.n, 1), mix), 1)

    def read(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """x [B, T, n, D] -> what the branch reads [B, T, D], and for `write` post [B, T, n] and mix [B, T, n, n]."""
        with own_precision(x.device):
            streams = wide(x)
            pre, post, mix = self._weights(streams)
            return (pre.unsqueeze(-2) @ streams).squeeze(-2).to(x.dtype), (post, mix)

    def write(self, x: torch.Tensor, y: torch.Tensor, link: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The streams [B, T, n, D] after the branch gave `y` [B, T, D] for what it read from the streams `x`."""
        post, mix = link
        with own_precision(x.device):
            return (mix.mT @ wide(x) + post[..., None] * wide(y).unsqueeze(-2)).to(x.dtype)

    def _weights(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """pre [B, T, n], post [B, T, n], mix [B, T, n, n] for x [B, T, n, D]."""
        together, n = self.mixing == "birkhoff", self.n
        weight, bias, scale = (wide(p) for p in (self.weight, self.bias, self.scale))
        u = x.flatten(-2) if together else x
        z = F.linear(u, weight) * torch.rsqrt(u.square().mean(-1, keepdim=True) + self.eps)  # = W rms(u)
        z = (z if together else z.tanh()).split(self.sizes, dim=-1)
        pre, post, mix = (a * part + b for a, part, b in zip(scale, z, bias.split(self.sizes, dim=-1), strict=True))
        if together:
            return pre.sigmoid(), 2.0 * post.sigmoid(), sinkhorn(mix.unflatten(-1, (n, n)), self.sinkhorn_iters)
        if self.mixing == "learned_lowrank":
            mix = torch.eye(n, dtype=mix.dtype, device=mix.device) + mix @ wide(self.right)
        return pre.squeeze(-1), post.squeeze(-1), mix

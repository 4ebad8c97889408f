"""Attention sinks: logits of a head that take their share of the softmax and carry no value.

Reference: Agarwal et al. 2025, gpt-oss model card, section 2.2; Xiao et al. 2024, section 3.3.

    p_ij = exp(s_ij) / (sum_k exp(s_ik) + sum_n exp(sink_n))

So the sinks of a head act as one, of logit log(sum_n exp(sink_n)): the `sink` [H] that everything here works with.
B batch, H query heads, G key-value heads, T queries, K keys, D width of q, k and v.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

WIDTHS = 16  # heads whose width is a multiple of it are fast


def new_sinks(n_heads: int, options: dict | None) -> nn.Parameter | None:
    """The logits [H], or [H, n_per_head] of several; None without sinks, and where they are fixed at zero."""
    if options is None or not options["learnable"]:
        return None
    n = options["n_per_head"]
    return nn.Parameter(torch.zeros(n_heads) if n == 1 else torch.zeros(n_heads, n))


def joint_sink(sinks: torch.Tensor | None, options: dict, like: torch.Tensor) -> torch.Tensor:
    """[H] in the dtype of `like` [B, H, ...]."""
    if sinks is None:
        return like.new_full((like.shape[1],), math.log(options["n_per_head"]))
    return (sinks if sinks.dim() == 1 else sinks.logsumexp(-1)).to(like.dtype)


def share_of_keys(scores: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """What the sink leaves to the keys, [B, H, T, 1], of `scores` [B, H, T, K]: the factor on their plain average."""
    return torch.sigmoid(scores.logsumexp(-1, keepdim=True) - sink.to(scores.dtype)[:, None, None])


def with_sink_key(q, k, v, mask, sink: torch.Tensor, scaling: float):
    """q [B, H, T, D], k and v [B, G, K, D] and `mask` with the sink as a key before the others, for a kernel that knows
    none: a feature more, in which queries hold sink / scaling, that key 1 and all others 0. The value there is zero.

    Under plain causality a query goes before the others too, so that the i-th still sees i keys; drop its row.
    """
    d = q.shape[-1]
    more, row = WIDTHS - d % WIDTHS, int(mask is None and q.shape[2] > 1)
    q, k, v = F.pad(q, (0, more, row, 0)), F.pad(k, (0, more, 1, 0)), F.pad(v, (0, more, 1, 0))
    q[..., d] = (sink / scaling)[:, None]
    k[:, :, 0, d] = 1.0
    if mask is not None:
        mask = F.pad(mask, (1, 0), value=True if mask.dtype == torch.bool else 0.0)
    return q, k, v, mask

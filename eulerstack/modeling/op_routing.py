"""Which experts a token goes to: the affinities of a router, groups that limit the choice, and the choice by hash.

E experts in G consecutive groups, K top_k.
"""

import torch
from torch.nn import functional as F

from .op_precision import wide

AFFINITIES = ("softmax", "sigmoid", "sqrt_softplus")
WORD = 0xFFFFFFFF
STEP = 0x9E3779B9  # 2^32 over the golden ratio: its multiples are far from one another


def affinity(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """Affinities of each token to each expert, `[..., E] -> [..., E]`, in float32 (float64 stays).

    softmax: over the experts (Fedus et al. 2021, Switch Transformers, equation 1). sigmoid: each expert for itself
    (DeepSeek-V3, equation 15). sqrt_softplus: sqrt(log(1 + exp(x))) (DeepSeek-V4).
    """
    x = wide(logits)
    if kind == "softmax":
        return x.softmax(-1)
    if kind == "sigmoid":
        return x.sigmoid()
    # Far below zero it is exp(x / 2), whose gradient is finite where softplus underflows. The branch that `where` does
    # not take must stay finite too: zero times infinity is not zero.
    return torch.where(x < -30, (x.clamp(max=0) / 2).exp(), F.softplus(x.clamp(min=-30)).sqrt())


def within_groups(choice: torch.Tensor, groups: int, limit: int, best: int) -> torch.Tensor:
    """`choice` `[..., E]` with minus infinity for the experts outside the token's `limit` best groups.

    A group is worth the sum of its `best` highest entries: of one (DeepSeek-V2, section 2.2.2), or of two where a bias
    corrects the choice (DeepSeek-V3, section 2.1.2, and its reference code).
    """
    grouped = choice.unflatten(-1, (groups, -1))
    worth = grouped.topk(min(best, grouped.shape[-1])).values.sum(-1)
    allowed = torch.zeros_like(worth, dtype=torch.bool).scatter(-1, worth.topk(limit).indices, True)
    return grouped.masked_fill(~allowed.unsqueeze(-1), -torch.inf).flatten(-2)


def hash_experts(ids: torch.Tensor, salt: int, experts: int, top_k: int) -> torch.Tensor:
    """`top_k` different experts for each token id, `[...] int -> [..., K]` int64: a function of the id, the salt and
    the number of experts alone (Roller et al. 2021, Hash Layers; here without a table, so that any vocabulary will do).

    The salt, as two words of 32 bits, and the id are mixed into a key, and key + k STEP is mixed again into the draw of
    place k = 1, ..., K: a number below E - k + 1 that counts the experts not chosen yet. So every ordered choice of K
    out of E is as likely as any other.
    """
    seed = mix(mix(salt & WORD) ^ (salt >> 32 & WORD))
    key = mix((ids.long() & WORD) ^ seed)
    chosen: list[torch.Tensor] = []
    for place in range(1, top_k + 1):
        draw = mix((key + place * STEP) & WORD) % (experts - place + 1)
        if chosen:  # step over each expert taken at or below the draw, lowest first
            for taken in torch.stack(chosen, -1).sort(-1).values.unbind(-1):
                draw = draw + (draw >= taken)
        chosen.append(draw)
    return torch.stack(chosen, -1)


def mix(x):
    """A one-to-one scramble of the numbers below 2^32, an int or int64 tensor: the output function of splitmix32.

    Both factors are below 2^31, so no product leaves 63 bits and every platform finds the same.
    """
    x = (x ^ x >> 16) * 0x21F0AAAD & WORD
    x = (x ^ x >> 15) * 0x735A2D97 & WORD
    return x ^ x >> 15

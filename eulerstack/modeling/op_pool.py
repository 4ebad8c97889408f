"""One entry for each block of m tokens: an average, a maximum, or a softmax over the tokens of the block.

Reference: DeepSeek-AI 2026, DeepSeek-V4, section 2.3.2 (softmax_gated); Yuan et al. 2025, section 3.3.1 (compression).

    mean, max        over the m tokens, feature by feature
    learned_pool     sum_i softmax_i(b_i) u_i           b [m, W] learned, one logit per place in the block and feature
    softmax_gated    sum_i softmax_i(W_z x_i + b_i) u_i   the token has its say too

u_i = W_u x_i are what is pooled: keys, and values under the same weights. B batch, T tokens, N new blocks, M model
width, W features. State: what was projected of the newest m - 1 tokens, one tensor [B, min(P, m - 1), W] a projection.
"""

import torch
from torch import nn

from .context import Context
from .initial import Constant, Init, Rule
from .op_blocks import Blocks
from .op_mask import retain
from .op_precision import wide

POOLS = ("mean", "max", "softmax_gated", "learned_pool")


class Pool(nn.Module):
    """`streams` names what is pooled: each has a projection `<name>_proj` of `width` features."""

    def __init__(self, d_model: int, *, pool: str, m_block: int, streams: tuple[str, ...], width: int, bias: bool):
        super().__init__()
        if pool not in POOLS:
            raise ValueError(f"unknown pool {pool!r}; one of {', '.join(POOLS)}")
        self.pool, self.m_block, self.streams = pool, m_block, streams
        for name in streams:
            setattr(self, f"{name}_proj", nn.Linear(d_model, width, bias=bias))
        if pool == "softmax_gated":
            self.gate_proj = nn.Linear(d_model, width, bias=False)
        learned = pool in ("softmax_gated", "learned_pool")
        self.position_bias = nn.Parameter(torch.empty(m_block, width)) if learned else None

    def initial(self, init: Init) -> dict[str, Rule]:
        """A new learned pool is a mean."""
        return {} if self.position_bias is None else {"position_bias": Constant(0.0)}

    def forward(self, x: torch.Tensor, context: Context, blocks: Blocks, state: dict[str, torch.Tensor] | None):
        """[B, T, M] -> (entries of the new blocks by stream, each [B, N, W]; new state or None)."""
        names = self.streams + (("gate",) if self.pool == "softmax_gated" else ())
        held = {name: getattr(self, f"{name}_proj")(x) for name in names}
        if state is not None:
            held = {name: torch.cat((state[name], now), 1) for name, now in held.items()}
        tokens = {name: blocks.gather(tensor) for name, tensor in held.items()}
        weights = self._weights(tokens.pop("gate", None))
        pooled = {name: self._pooled(tensor, weights) for name, tensor in tokens.items()}
        if not context.use_cache:
            return pooled, None
        return pooled, {name: retain(tensor, context, self.m_block - 1) for name, tensor in held.items()}

    def _weights(self, gates: torch.Tensor | None) -> torch.Tensor | None:
        """Shares of the tokens of a block, [B, N, m, W] or [m, W], summing to one; softmax in float32 or wider."""
        if self.position_bias is None:
            return None
        logits = self.position_bias if gates is None else gates + self.position_bias
        return wide(logits).softmax(-2).to(logits.dtype)

    def _pooled(self, tokens: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        if weights is not None:
            return (tokens * weights).sum(2)
        return tokens.mean(2) if self.pool == "mean" else tokens.amax(2)

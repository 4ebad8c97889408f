"""The indexer: a small attention that scores blocks, so that the large one looks only at the best.

Reference: DeepSeek-AI 2026, DeepSeek-V4, section 2.3.1 (the lightning indexer); Yuan et al. 2025, section 3.3.2.
With q_th, k_s of d features, turned by their places and then rounded to `dtype`, the score of entry s for query t is

    relu_mha            sum_h w_th relu(q_th . k_s) / sqrt(d H),   w_t = W_w x_t
    dot_product         sum_h q_th . k_s / sqrt(d)
    learned_block_sel   sum_h softmax_s(q_th . k_s / sqrt(d)) over the entries that t sees

Which entries are best is a choice without a gradient, so the scores of the chosen ones get the gradient of the
attention logits they stand beside (`nudge`): an entry that should have had more weight is scored higher next time.

B batch, T queries, E entries, H heads of the indexer, d their width, M model width.
State: the pool's, and `entries` [B, E, d], turned and rounded.
"""

import torch
from torch import nn

from .context import Context
from .norm import RMSNorm
from .op_blocks import Blocks, places
from .op_fake_quant import fake_quantise
from .op_pool import Pool
from .op_precision import wide
from .op_rope import rotary, rotate

ARCHES = ("relu_mha", "dot_product", "learned_block_sel")


class Indexer(nn.Module):
    """Pools the layer's input once more, to one key of `d_per_head` features a block, which all its heads read."""

    def __init__(self, config, *, pool: str, m_block: int, arch: str, n_heads: int, d_per_head: int, dtype: str):
        super().__init__()
        if arch not in ARCHES:
            raise ValueError(f"unknown indexer {arch!r}; one of {', '.join(ARCHES)}")
        self.config, self.arch, self.n_heads, self.width, self.format = config, arch, n_heads, d_per_head, dtype
        d = config.hidden_size
        self.q_proj = nn.Linear(d, n_heads * d_per_head, bias=False)
        self.pool = Pool(d, pool=pool, m_block=m_block, streams=("k",), width=d_per_head, bias=False)
        self.k_norm = RMSNorm(d_per_head, config.rms_norm_eps)
        if arch == "relu_mha":
            self.weights_proj = nn.Linear(d, n_heads, bias=False)

    def forward(self, x: torch.Tensor, context: Context, blocks: Blocks, state: dict[str, torch.Tensor] | None):
        """[B, T, M] -> (scores [B, T, E] in float32 or wider, new state or None)."""
        pooled, kept = self.pool(x, context, blocks, state)
        entries = self._placed(self.k_norm(pooled["k"])[:, :, None], context, blocks)[:, :, 0]
        entries = blocks.join(None if state is None else state["entries"], fake_quantise(entries, self.format))
        q = self._placed(self.q_proj(x).unflatten(-1, (self.n_heads, self.width)), context, None)
        scores = self._scores(x, fake_quantise(q, self.format), entries, blocks)
        return scores, None if kept is None else kept | {"entries": entries}

    def _placed(self, x: torch.Tensor, context: Context, blocks: Blocks | None) -> torch.Tensor:
        """Queries turned to their places; the keys of new `blocks` to the place of their first token."""
        if self.config.positional != "rope":
            return x
        where = context.positions if blocks is None else places(context, blocks)
        name = "now" if blocks is None else ("blocks", blocks.size)
        return rotate(x, *rotary(self.config, context, where, self.width, x.dtype, name))

    def _scores(self, x: torch.Tensor, q: torch.Tensor, entries: torch.Tensor, blocks: Blocks) -> torch.Tensor:
        products = wide(q).transpose(1, 2) @ wide(entries).mT[:, None] * self.width**-0.5  # [B, H, T, E]
        if self.arch == "dot_product":
            return products.sum(1)
        if self.arch == "relu_mha":
            weights = wide(self.weights_proj(x)) * self.n_heads**-0.5
            return (products.relu() * weights.mT[..., None]).sum(1)
        hidden = ~blocks.visible()[:, None]
        return products.masked_fill(hidden, torch.finfo(products.dtype).min).softmax(-1).sum(1)


def best(scores: torch.Tensor, visible: torch.Tensor, k: int) -> torch.Tensor:
    """[B, T, E] bool: the `k` visible entries of each query with the highest `scores`, the newer one of equal ones."""
    if scores.shape[-1] <= k:
        return visible
    scores = scores.detach().masked_fill(~visible, -torch.inf)
    least = scores.topk(k, -1).values[..., -1:]
    above, equal = scores > least, (scores == least) & visible
    newer = equal.flip(-1).cumsum(-1).flip(-1)  # of the equal ones, itself included
    return above | (equal & (newer <= k - above.sum(-1, keepdim=True)))


def nudge(scores: torch.Tensor) -> torch.Tensor:
    """Zeros whose gradient is that of `scores`, to be added to attention logits."""
    return scores - scores.detach()

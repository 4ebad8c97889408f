"""Multi-token prediction: modules that predict the tokens after the next one, for a denser loss and as drafts.

Reference: DeepSeek-AI 2024, DeepSeek-V3 Technical Report, section 2.2, equations 21 to 25. Module k = 1..n reads, at
place i, what the module before it left there and the embedding of the token k places on,

    h^k_i = L_k( M_k [RMSNorm(h^{k-1}_i); RMSNorm(Emb(t_{i+k}))] ),   P^k_{i+k+1} = softmax(OutHead(h^k_i)),

where h^0 is the output of the decoder after its final norm, M_k a D x 2D matrix, L_k real decoder layers and a final
norm if the decoder has one. Embedding and output head are the model's. The loss is weight / n * sum_k CE(P^k, t).

B batch, T tokens of a call, D model width, n modules (here also: residual streams of a hyper-connection).
"""

import torch
from torch import nn

from .cache import EulerStackCache
from .context import Context
from .layer import DecoderLayer
from .norm import RMSNorm, build_norm
from .op_context import build_context, for_other_tokens
from .op_loss import Targets
from .op_precision import wide
from .walk import Walk, update_biases


class Head(nn.Module):
    """The modules of `config.mtp` {"n_predict", "head_layers", "kind" (of block), "train_loss_weight"}."""

    def __init__(self, config, parts: dict[str, type]):
        super().__init__()
        self.weight = config.mtp["train_loss_weight"]
        self.heads = nn.ModuleList(Predictor(config, parts, k) for k in range(config.mtp["n_predict"]))
        self.needs_ids = any(getattr(module, "needs_ids", False) for module in self.heads.modules())

    def forward(self, hidden: torch.Tensor, embeds: torch.Tensor, context: Context, targets: Targets):
        """The loss, a scalar, and the (part, module, record) of the routers.

        `hidden` [B, T, D] is the decoder's output, `embeds` [B, T, D] the embeddings of the tokens. No target lies in
        another document than the place that predicts it, and padding predicts nothing.
        """
        total, records = wide(hidden.new_zeros(())), []
        goes_on, together, h = _goes_on(context), context.keep, hidden
        for k, head in enumerate(self.heads, 1):
            rows = embeds.shape[1] - k
            if rows < 1:  # the sequence ends before this module's first token, yet every parameter has a gradient
                total = total + 0.0 * sum(p.sum() for p in head.parameters()).to(total)
                continue
            together = None if goes_on is None else _both(together, goes_on[:, k:], rows)
            own = _context(context, k, together)
            h, found = head(h[:, :rows], embeds[:, k:], own)
            records += found
            ahead = None if goes_on is None else together[:, :-1] & goes_on[:, k + 1 :]
            total = total + targets.loss(h[:, :-1], k + 1, ahead)
            if self.training and torch.is_grad_enabled():
                update_biases(found)
        return self.weight / len(self.heads) * total, tuple(records)


class Predictor(nn.Module):
    """Module `number` (from 0): a projection of two inputs, and `head_layers` decoder layers."""

    def __init__(self, config, parts: dict[str, type], number: int):
        super().__init__()
        self.streams, self.wide_stream = config.streams, config.dtype_policy == "layered_safe"
        d, many, eps = config.hidden_size, config.mtp["head_layers"], config.rms_norm_eps
        first, block = config.num_hidden_layers + number * many, config.blocks[config.mtp["kind"]]
        self.hidden_norm, self.token_norm = (RMSNorm(d, eps) for _ in range(2))
        self.proj = nn.Linear(2 * d, d, bias=False)
        self.layers = nn.ModuleList(DecoderLayer(config, first + j, block, parts) for j in range(many))
        self.norm = build_norm(d, eps, config.final_norm) if config.final_norm else nn.Identity()

    def forward(self, hidden: torch.Tensor, embeds: torch.Tensor, context: Context, cache=None):
        """hidden and embeds [B, T, D] -> ([B, T, D], records); `cache` has what an earlier call left, and moves on."""
        dtype = self.hidden_norm.weight.dtype  # not that of a matrix, which may be quantised to integers
        x = self.proj(torch.cat((self.hidden_norm(hidden.to(dtype)), self.token_norm(embeds.to(dtype))), -1))
        x = wide(x) if self.wide_stream else x
        x = x if self.streams is None else x.unsqueeze(2).repeat(1, 1, self.streams, 1)
        walk = Walk(self.layers, context, cache and cache.states)
        for index in range(len(self.layers)):
            x = walk.layer(index, x)
        if context.use_cache:
            cache.advance(walk.kept, context.key_positions, context.key_keep, context.key_documents)
        return self.norm(x if self.streams is None else x.mean(2)), walk.records

    def new_cache(self) -> EulerStackCache:
        return EulerStackCache(len(self.layers))

    def go_on(self, hidden: torch.Tensor, embeds: torch.Tensor, ids: torch.Tensor, keep: torch.Tensor, cache):
        """The output [B, T, D] for the next T places of a sequence that is being generated; keep [B, T]."""
        facts = {"position_ids": None, "use_cache": True, "input_ids": ids, "extra": {}}
        return self(hidden, embeds, build_context(embeds, past=cache, attention_mask=keep, **facts), cache)[0]


def _goes_on(context: Context) -> torch.Tensor | None:
    """[B, T] bool: this token is real and continues the document of the token before it; None where all do."""
    if context.starts is None:
        return context.keep
    return ~context.starts if context.keep is None else context.keep & ~context.starts


def _both(together: torch.Tensor | None, next_goes_on: torch.Tensor, rows: int) -> torch.Tensor:
    return next_goes_on if together is None else together[:, :rows] & next_goes_on


def _context(context: Context, k: int, together: torch.Tensor | None) -> Context:
    """Of the places whose token k on is there; those where it is not in their document (`together`) are padding."""
    rows = context.positions.shape[1] - k
    positions, starts = context.positions[:, :rows], context.starts
    documents = None if starts is None else starts.long().cumsum(1)[:, :rows]
    return Context(
        positions=positions,
        keep=together,
        starts=None if starts is None else starts[:, :rows] & together,
        key_positions=positions,
        key_keep=together,
        key_documents=documents,
        input_ids=None if context.input_ids is None else context.input_ids[:, k:],
        extra=for_other_tokens(context.extra),
    )

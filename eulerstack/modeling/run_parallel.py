"""Streams of layers that read the same input, and how their outputs join.

With y_i the output of stream i on the input x, d_i = y_i - x what it adds, and W a learned projection (the identity
without one; concat has none of that size, so it always projects),

    concat      x + W [d_1; ...; d_k]
    add         x + W (d_1 + ... + d_k)
    gated       x + W (g_1 d_1 + ... + g_k d_k),  g = softmax over the streams of a linear map of x, for each token
    cross_attn  x + W (the d_i of every stream but `source`, + A(y_target, y_source))

where A is causal attention with as many heads as the model has: queries from the stream `target`, keys and values from
`source`, both normed. It adds d_i of streams that it does not name.

B batch, T tokens, D d_model, n residual streams of a hyper-connection, H heads, K keys held.
"""

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .norm import RMSNorm
from .op_mask import Window, attention_mask
from .op_precision import wide
from .walk import Walk


class Run(nn.Module):
    """`streams` are lists of layer indices; `source` and `target` are the numbers of two streams (cross_attn)."""

    def __init__(
        self,
        config,
        parts: dict[str, type],
        *,
        streams: list[list[int]],
        merge: str,
        projection: bool,
        source: int | None,
        target: int | None,
    ):
        super().__init__()
        self.streams, self.merge, self.source, self.target = streams, merge, source, target
        d, many = config.hidden_size, len(streams)
        self.gate = nn.Linear(d, many, bias=False) if merge == "gated" else None
        self.attention = CrossAttention(config) if merge == "cross_attn" else None
        self.proj = nn.Linear(many * d if merge == "concat" else d, d, bias=False) if projection else None
        if self.proj is not None:
            self.proj.to_residual = True
        self.slots = sum(map(len, streams)) + (merge == "cross_attn")
        self.croppable = True

    def forward(self, x: torch.Tensor, walk: Walk) -> torch.Tensor:
        """[B, T, D] or [B, T, n, D] -> the same shape."""
        outputs = []
        for layers in self.streams:
            y = x
            for index in layers:
                y = walk.layer(index, y)
            outputs.append(y)
        change = self._joined(x, outputs, walk)
        if self.proj is not None:
            change = self.proj(_as_read(change, self.proj)).to(x.dtype)
        return x + change

    def _joined(self, x: torch.Tensor, outputs: list[torch.Tensor], walk: Walk) -> torch.Tensor:
        changes = [y - x for y in outputs]
        if self.merge == "concat":
            return torch.cat(changes, -1)
        if self.merge == "gated":
            weights = wide(self.gate(_as_read(_single(x), self.gate))).softmax(-1).to(x.dtype)
            weights = weights if x.dim() == 3 else weights[:, :, None]
            return sum(weights[..., i, None] * change for i, change in enumerate(changes))
        if self.merge == "add":
            return sum(changes)
        kept = sum(change for i, change in enumerate(changes) if i != self.source)
        read = walk.step(self.attention, _single(outputs[self.target]), _single(outputs[self.source])).to(x.dtype)
        return kept + (read if x.dim() == 3 else read[:, :, None])


def _single(x: torch.Tensor) -> torch.Tensor:
    """The mean of the residual streams, [B, T, D]."""
    return x if x.dim() == 3 else x.mean(2)


def _as_read(x: torch.Tensor, linear: nn.Module) -> torch.Tensor:
    """`x` in the dtype of the weight that reads it; packed weights of a quantiser take any."""
    dtype = linear.weight.dtype
    return x.to(dtype) if dtype.is_floating_point and dtype.itemsize > 1 else x


class CrossAttention(nn.Module):
    """Causal attention from one stream to another. State: keys and values [B, K, H, D / H] of the source."""

    def __init__(self, config):
        super().__init__()
        self.n_heads, self.head_dim = config.num_attention_heads, config.head_dim
        d, width = config.hidden_size, self.n_heads * self.head_dim
        self.q_norm, self.kv_norm = (RMSNorm(d, config.rms_norm_eps) for _ in range(2))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, d, bias=False)

    def forward(self, target: torch.Tensor, source: torch.Tensor, context: Context, state: dict | None):
        """target and source [B, T, D] -> (y [B, T, D], new state or None)."""
        dtype = self.q_norm.weight.dtype  # that of a projection may be a quantiser's
        source = self.kv_norm(source.to(dtype))
        q = self.q_proj(self.q_norm(target.to(dtype)))
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in (q, self.k_proj(source), self.v_proj(source)))
        if state is not None:
            k, v = torch.cat((state["keys"], k), 1), torch.cat((state["values"], v), 1)
        mask = attention_mask(context, Window(None, "standard", 1), 0, q.dtype)
        causal = mask is None and q.shape[1] == k.shape[1]
        heads = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=causal).transpose(1, 2)
        return self.o_proj(y.flatten(2)), {"keys": k, "values": v} if context.use_cache else None

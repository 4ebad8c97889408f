"""Softmax attention over projected heads: what the attention mixers share.

B batch, T queries, K keys held, H query heads, G key-value heads, D head dim, M model width.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .context import Context
from .norm import RMSNorm
from .op_mask import Window, attention_mask, keys_of
from .op_rope import rotary, rotate


class SoftmaxAttention(nn.Module):
    """softmax(scale q k^T + mask) v per head, then `o_proj`. A subclass makes q, k and v in `project`.

    The names of the attributes are those that attention kernels registered with transformers read.
    """

    is_causal = True

    def __init__(
        self,
        config,
        layer_idx: int,
        *,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        o_bias: bool,
        attn_drop: float,
        window: int | None,
        window_mode: str,
        window_dilation: int,
        qk_norm: str | None,
        logit_softcap: float | None,
        scale: float,
    ):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.num_key_value_groups = n_heads // n_kv_heads
        self.scaling, self.attn_drop, self.logit_softcap = scale, attn_drop, logit_softcap
        self.window = Window(window, "standard" if window_mode == "sliding" else window_mode, window_dilation)
        self.sliding_window = window if self.window.mode == "standard" else None
        self.alibi_heads = n_heads if config.positional == "alibi" else 0
        self.croppable = self.window.reach is None
        self.o_proj = nn.Linear(n_heads * head_dim, config.hidden_size, bias=o_bias)
        self.o_proj.to_residual = True
        self.per_head_norm = qk_norm == "rmsnorm"
        if qk_norm not in (None, "none"):
            widths = (head_dim, head_dim) if self.per_head_norm else (n_heads * head_dim, n_kv_heads * head_dim)
            self.q_norm, self.k_norm = (RMSNorm(width, config.rms_norm_eps) for width in widths)

    def project(self, x: torch.Tensor, context: Context, state: dict | None):
        """`x` [B, T, M] -> q [B, T, H, D], k and v [B, K, G, D], and what to keep of the K keys, or None."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor, context: Context, state: dict[str, torch.Tensor] | None = None):
        """[B, T, M] -> (y [B, T, M], new state or None)."""
        q, k, v, state = self.project(x, context, state)
        kernel, mask, hints = self._kernel(context, q.dtype)
        if hasattr(ALL_ATTENTION_FUNCTIONS, "get_interface"):
            attend = ALL_ATTENTION_FUNCTIONS.get_interface(kernel, eager_attention)
        else:
            attend = ALL_ATTENTION_FUNCTIONS.get(kernel, eager_attention)
        y, _ = attend(
            self,
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            mask,
            dropout=self.attn_drop if self.training else 0.0,
            scaling=self.scaling,
            **context.extra | hints,
        )
        return self.o_proj(y.flatten(2)), state

    def _kernel(self, context: Context, dtype: torch.dtype) -> tuple[str, torch.Tensor | None, dict]:
        """The kernel that can do what this layer asks for in this call, its mask, and its own keywords.

        The plain path does everything; torch's lacks the cap; a registered one is trusted with causality, a window, a
        cap and, in a single row, documents, which it is told by name, and with nothing that needs a mask.
        """
        name = self.config._attn_implementation or "eager"
        if name == "sdpa" and self.logit_softcap is None:
            return name, attention_mask(context, self.window, self.alibi_heads, dtype), {}
        if name not in ("eager", "sdpa") and self._describable(context):
            told = {"sliding_window": self.sliding_window, "softcap": self.logit_softcap}
            return name, None, told | {"position_ids": context.positions}
        wide = torch.promote_types(dtype, torch.float32)
        return "eager", attention_mask(context, self.window, self.alibi_heads, wide), {}

    def _describable(self, context: Context) -> bool:
        b, t = context.positions.shape
        one_document = context.key_documents is None
        aligned = context.past == 0 or (t == 1 and one_document)
        by_name = not self.alibi_heads and self.window.mode == "standard"
        return by_name and aligned and context.key_keep is None and (one_document or b == 1)

    def normed(self, x: torch.Tensor, which: str) -> torch.Tensor:
        """q or k `x` [B, T, H, D] after `q_norm` or `k_norm`, over each head or over all heads at once."""
        norm = getattr(self, which, None)
        if norm is None:
            return x
        return norm(x) if self.per_head_norm else norm(x.flatten(2)).view_as(x)

    def rotated(self, x: torch.Tensor, context: Context, *, held: bool) -> torch.Tensor:
        """`x` [B, T, H, D] turned to the places of the call, or with `held` of all the keys the layer holds."""
        if self.config.positional != "rope":
            return x
        positions = keys_of(context, self.window.reach).positions if held else context.positions
        name = ("held", self.window.reach) if held else "now"
        return rotate(x, *rotary(self.config, context, positions, self.head_dim, x.dtype, name))


def eager_attention(module, query, key, value, attention_mask, *, dropout: float, scaling: float, **_):
    """query [B, H, T, D], key and value [B, G, K, D] -> ([B, T, H, D], None); scores and softmax in float32 or wider.

    `attention_mask` is bool or additive, [B or 1, 1 or H, T, K]; None is causal, the last query at the last key.
    """
    key, value = (t.repeat_interleave(module.num_key_value_groups, 1) for t in (key, value))
    scores = (query @ key.transpose(-1, -2)).to(torch.promote_types(query.dtype, torch.float32)) * scaling
    if module.logit_softcap is not None:
        scores = module.logit_softcap * torch.tanh(scores / module.logit_softcap)
    if attention_mask is None:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(
            scores.shape[-1] - scores.shape[-2]
        )
    if attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    else:
        scores = scores + attention_mask
    weights = F.dropout(scores.softmax(-1), dropout, module.training)
    return (weights.to(value.dtype) @ value).transpose(1, 2), None

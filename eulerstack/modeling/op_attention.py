"""Softmax attention over projected heads: what the attention mixers share.

B batch, T queries, K keys held, H query heads, G key-value heads, D width of a head of q and k, V of v, M model width.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .context import Context
from .initial import Init, Rule
from .norm import RMSNorm
from .op_mask import Window, attention_mask, keys_of
from .op_precision import at_least_float32, wide
from .op_rope import rotary, rotate
from .op_sinks import joint_sink, new_sinks, share_of_keys, with_sink_key


class SoftmaxAttention(nn.Module):
    """softmax(scale q k^T + mask) v per head. A subclass makes q, k and v, and `o_proj` of what `attend` returns.

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
        attn_drop: float,
        window: int | None,
        window_mode: str,
        window_dilation: int,
        logit_softcap: float | None,
        scale: float,
        attention_sinks: dict | None,
    ):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.num_key_value_groups = n_heads // n_kv_heads
        self.scaling, self.attn_drop, self.logit_softcap = scale, attn_drop, logit_softcap
        self.window = Window(window, "standard" if window_mode == "sliding" else window_mode, window_dilation)
        self.sliding_window = window if self.window.mode == "standard" else None
        self.alibi_heads = n_heads if config.positional == "alibi" else 0
        self.rotates = config.positional == "rope"
        self.croppable = self.window.reach is None
        self.attention_sinks = attention_sinks
        self.sinks = new_sinks(n_heads, attention_sinks)

    def initial(self, init: Init) -> dict[str, Rule]:
        return {} if self.sinks is None else {"sinks": init.table()}

    def attend(self, q, k, v, context: Context, *, plain: bool = False, mask=None) -> torch.Tensor:
        """q [B, T, H, D], k [B, K, G, D], v [B, K, G, V] -> [B, T, H, V]; `plain` asks for the plain path.

        `mask`, bool or additive, [B or 1, 1 or H, T, K], says what is seen instead of causality and the window.
        """
        known = self._kernel(context, q.dtype, plain) if mask is None else self._masked(mask, q.dtype, plain)
        kernel, mask, hints = known
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        sink = None if self.attention_sinks is None else joint_sink(self.sinks, self.attention_sinks, q)
        t, width = q.shape[2], v.shape[-1]
        if kernel == "eager":
            hints = hints | {"sink": sink}
        else:
            q, k, v = _of_one_width(q, k, v)
            if sink is not None:
                q, k, v, mask = with_sink_key(q, k, v, mask, sink, self.scaling)
        y, _ = _function(kernel)(
            self,
            q,
            k,
            v,
            mask,
            dropout=self.attn_drop if self.training else 0.0,
            scaling=self.scaling,
            **context.extra | hints,
        )
        return y if y.shape[1] == t and y.shape[-1] == width else y[:, y.shape[1] - t :, :, :width]

    def _kernel(self, context: Context, dtype: torch.dtype, plain: bool) -> tuple[str, torch.Tensor | None, dict]:
        """The kernel that can do what this layer asks for in this call, its mask, and its own keywords.

        The plain path does everything; torch's lacks the cap; a registered one is trusted with causality, a window, a
        cap and, in a single row, documents, which it is told by name, and with nothing that needs a mask or a sink.
        """
        name = "eager" if plain else self.config._attn_implementation or "eager"
        if name == "sdpa" and self.logit_softcap is None:
            return name, attention_mask(context, self.window, self.alibi_heads, dtype), {}
        if name not in ("eager", "sdpa") and self._describable(context):
            told = {"sliding_window": self.sliding_window, "softcap": self.logit_softcap}
            return name, None, told | {"position_ids": context.positions}
        return "eager", attention_mask(context, self.window, self.alibi_heads, at_least_float32(dtype)), {}

    def _masked(self, mask: torch.Tensor, dtype: torch.dtype, plain: bool) -> tuple[str, torch.Tensor, dict]:
        """As `_kernel`, with a mask that is given."""
        fast = not plain and self.config._attn_implementation == "sdpa" and self.logit_softcap is None
        return ("sdpa", mask if mask.dtype == torch.bool else mask.to(dtype), {}) if fast else ("eager", mask, {})

    def _describable(self, context: Context) -> bool:
        b, t = context.positions.shape
        one_document = context.key_documents is None
        aligned = context.past == 0 or (t == 1 and one_document)
        by_name = not self.alibi_heads and self.window.mode == "standard" and self.attention_sinks is None
        return by_name and aligned and context.key_keep is None and (one_document or b == 1)

    def rotated(self, x: torch.Tensor, context: Context, *, held: bool) -> torch.Tensor:
        """`x` [B, T, H, D] turned to the places of the call, or with `held` of all the keys the layer holds."""
        if not self.rotates:
            return x
        positions = keys_of(context, self.window.reach).positions if held else context.positions
        name = ("held", self.window.reach) if held else "now"
        return rotate(x, *rotary(self.config, context, positions, self.head_dim, x.dtype, name))


class NormOverHeads(RMSNorm):
    """Over all heads of `x` [B, T, H, D] at once, where `d` is H D."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(2)).view_as(x)


def head_norm(qk_norm: str, n_heads: int, head_dim: int, eps: float) -> nn.Module:
    """The norm of q or k [B, T, H, D]: `qk_norm` none | rmsnorm (each head by itself) | rmsnorm_full."""
    if qk_norm == "none":
        return nn.Identity()
    return RMSNorm(head_dim, eps) if qk_norm == "rmsnorm" else NormOverHeads(n_heads * head_dim, eps)


def output_projection(config, width: int, bias: bool) -> nn.Linear:
    """From all heads, `width` numbers, to the residual stream."""
    projection = nn.Linear(width, config.hidden_size, bias=bias)
    projection.to_residual = True
    return projection


def _function(kernel: str):
    """The attention function of transformers' registry under this name, or the plain one."""
    if hasattr(ALL_ATTENTION_FUNCTIONS, "get_interface"):
        return ALL_ATTENTION_FUNCTIONS.get_interface(kernel, eager_attention)
    return ALL_ATTENTION_FUNCTIONS.get(kernel, eager_attention)


def _of_one_width(*heads: torch.Tensor) -> list[torch.Tensor]:
    """Zeros after the narrower of q, k, v [B, H, T, D], which change nothing: torch's fast kernel wants one width."""
    width = max(t.shape[-1] for t in heads)
    return [t if t.shape[-1] == width else F.pad(t, (0, width - t.shape[-1])) for t in heads]


def eager_attention(module, query, key, value, attention_mask, *, dropout: float, scaling: float, sink=None, **_):
    """query [B, H, T, D], key [B, G, K, D], value [B, G, K, V] -> ([B, T, H, V], None); scores and softmax in float32
    or wider. A head's `sink` [H] takes its share of the softmax.

    `attention_mask` is bool or additive, [B or 1, 1 or H, T, K]; None is causal, the last query at the last key.
    """
    heads = query.shape[1]
    query = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)  # [B, G, H/G T, D]: a group's queries share its keys
    scores = wide(_by_head(query @ key.transpose(-1, -2), heads)) * scaling
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
    weights = F.dropout(scores.softmax(-1), dropout, module.training).to(value.dtype)
    y = _by_head(weights.unflatten(1, (key.shape[1], -1)).flatten(2, 3) @ value, heads)
    if sink is not None:
        y = y * share_of_keys(scores, sink).to(y.dtype)
    return y.transpose(1, 2), None


def _by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, G, H/G T, N] -> [B, H, T, N]."""
    return x.unflatten(2, (heads // x.shape[1], -1)).flatten(1, 2)

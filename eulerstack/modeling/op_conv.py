"""The short causal convolution in front of a state-space scan: depthwise, K taps, over real tokens of one document.

    y_t[c] = bias[c] + sum over j < K of weight[c, K-1-j] x_{t-j}[c]

where t - j counts back over the real tokens of t's document, and x before its first token is 0. Padding is neither
read nor counted, wherever it stands.

B batch, T tokens, C channels, K taps.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Init, Rule, Sampled


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tail: torch.Tensor | None = None,
    keep: torch.Tensor | None = None,
    resets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs `[B, T, C]` and the new tail `[B, C, K-1]`.

    `x` `[B, T, C]`, `weight` `[C, 1, K]` as in nn.Conv1d, `bias` `[C]` or None; `tail`, the last K - 1 real tokens of
    the document under way, zeros before its first one (None: all zeros); `keep` `[B, T]` bool, False on padding, whose
    outputs mean nothing; `resets` `[B, T]` bool, True where a new document starts.
    """
    taps = weight.shape[-1]
    document = None if resets is None else resets.cumsum(1)  # the tail belongs to document 0
    last = None if resets is None else document[:, -1:]
    order = None
    if keep is not None:  # real tokens first, so that neighbours are neighbours
        order = (~keep).to(torch.uint8).argsort(dim=1, stable=True)
        x = x.gather(1, order[..., None].expand_as(x))
        document = None if resets is None else document.gather(1, order)

    tail = x.new_zeros(x.shape[0], taps - 1, x.shape[2]) if tail is None else tail.to(x.dtype).mT
    window = torch.cat([tail, x], 1)
    if resets is None:
        image = window.mT[:, :, None]  # one pixel high: its channels-last layout is `window` itself, nothing is moved
        y = F.conv2d(image, weight[:, :, None], bias, groups=x.shape[2])[:, :, 0].mT
        tail = _last_real(window, keep, taps)
    else:
        document = F.pad(document, (taps - 1, 0))
        y = _conv_within(window, weight, bias, document)
        tail = _last_real(window, keep, taps) * (_last_real(document[..., None], keep, taps) == last[..., None])
    if order is not None:
        y = y.gather(1, order.argsort(1)[..., None].expand_as(y))
    return y, tail.mT


def _conv_within(window, weight, bias, document) -> torch.Tensor:
    """The convolution of `window` `[B, K-1+T, C]` where a tap reads 0 across a border of `document` `[B, K-1+T]`."""
    taps, tokens = weight.shape[-1], window.shape[1] - weight.shape[-1] + 1
    y = window.new_zeros(()) if bias is None else bias
    for j in range(taps):
        same = document[:, j : j + tokens] == document[:, taps - 1 :]
        y = torch.addcmul(y, window[:, j : j + tokens] * same[..., None], weight[:, 0, j])
    return y


def _last_real(window: torch.Tensor, keep: torch.Tensor | None, taps: int) -> torch.Tensor:
    """The last K - 1 rows of `window` `[B, K-1+T, *]` that are not padding, which stands behind the real tokens."""
    if keep is None:
        return window[:, window.shape[1] - taps + 1 :].clone()  # a view would keep all of the window alive
    rows = keep.sum(1)[:, None] + torch.arange(taps - 1, device=keep.device)
    return window.gather(1, rows[..., None].expand(-1, -1, window.shape[2]))


class ShortConv(nn.Module):
    """causal_conv with its weight `[C, 1, K]` and bias `[C]`, named and laid out as those of a depthwise nn.Conv1d."""

    def __init__(self, channels: int, taps: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def initial(self, init: Init) -> dict[str, Rule]:
        """Uniform within 1 / sqrt(K), as torch starts a convolution of fan-in K."""
        bound = 1.0 / math.sqrt(self.weight.shape[-1])
        rule = Sampled(lambda uniform: (2.0 * uniform - 1.0) * bound)
        return {"weight": rule} | ({"bias": rule} if self.bias is not None else {})

    def forward(self, x, context: Context, tail: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """x `[B, T, C]`, tail `[B, C, K-1]` or None -> outputs and the new tail."""
        return causal_conv(x, self.weight, self.bias, tail, context.keep, context.starts)

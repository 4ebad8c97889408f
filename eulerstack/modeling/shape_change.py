"""Between the width of the residual stream and that of the branches of a layer, token by token or over a few tokens.

    linear   y_t = W x_t
    conv1d   y_t = W_2 x_t + W_1 x_{t-1} + W_0 x_{t-2}, over the real tokens of one document, and 0 before its first
    mlp      y_t = W_down silu(W_up x_t), max(d_in, d_out) wide

No biases. B batch, T tokens, I width of the input, O of the output.
"""

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Init, Rule

TAPS = 3
State = dict[str, torch.Tensor]


class Convolution(nn.Module):
    """A dense causal convolution; `weight` [O, I, 3] is laid out as that of nn.Conv1d."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in, TAPS))

    def initial(self, init: Init) -> dict[str, Rule]:
        fan_in = self.weight.shape[1] * TAPS
        return {"weight": init.matrix(fan_in, to_residual=getattr(self, "to_residual", False))}

    def forward(self, x: torch.Tensor, context: Context, tail: torch.Tensor | None):
        """x [B, T, I] and tail [B, 2, I], the last real inputs of the document under way (None: zeros), oldest first
        -> (y [B, T, O], new tail)."""
        windows, tail = last_three(x, context, tail)
        return F.linear(windows, self.weight.permute(0, 2, 1).flatten(1)), tail


class ShapeChange(nn.Module):
    """`forward(x [B, T, I], context, state) -> (y [B, T, O], new state or None)`.

    State: conv1d keeps `tail` [B, 2, I], its last inputs, in their dtype.
    """

    def __init__(self, config, d_in: int, d_out: int, *, projection: str, to_residual: bool):
        super().__init__()
        self.projection, self.croppable = projection, projection != "conv1d"
        if projection == "linear":
            last = self.proj = nn.Linear(d_in, d_out, bias=False)
        elif projection == "conv1d":
            last = self.conv = Convolution(d_in, d_out)
        elif projection == "mlp":
            self.up = nn.Linear(d_in, max(d_in, d_out), bias=False)
            last = self.down = nn.Linear(max(d_in, d_out), d_out, bias=False)
        else:
            raise ValueError(f"unknown projection {projection!r}; one of linear, conv1d, mlp")
        last.to_residual = to_residual

    def forward(self, x: torch.Tensor, context: Context, state: State | None) -> tuple[torch.Tensor, State | None]:
        if self.projection == "linear":
            return self.proj(x), None
        if self.projection == "mlp":
            return self.down(F.silu(self.up(x))), None
        y, tail = self.conv(x, context, None if state is None else state["tail"])
        return y, {"tail": tail} if context.use_cache else None


def last_three(x: torch.Tensor, context: Context, tail: torch.Tensor | None):
    """For each token the inputs of the two real tokens before it in its document, oldest first, and its own.

    x [B, T, I], tail [B, 2, I] or None -> ([B, T, 3 I], new tail [B, 2, I]). Where there is none: zeros.
    """
    b, t, width = x.shape
    tail = x.new_zeros(b, TAPS - 1, width) if tail is None else tail.to(x.dtype)
    window = torch.cat((tail, x), 1)
    if context.keep is None and context.starts is None:
        taps = [window[:, j : j + t] for j in range(TAPS)]
        return torch.cat(taps, -1), window[:, t:].clone()  # a view would keep all of the window alive
    slots = torch.arange(TAPS - 1, t + TAPS - 1, device=x.device).expand(b, t)
    real = (slots if context.keep is None else slots.where(context.keep, 1)).cummax(1).values
    # The slot of the last real token before each slot of the window; the tail's last one is slot 1.
    before = torch.cat((slots.new_tensor([[0, 0]]).expand(b, 2), slots.new_ones(b, 1), real[:, :-1]), 1)
    first = torch.zeros_like(slots) if context.starts is None else slots.where(context.starts, 0).cummax(1).values
    one, now = before[:, TAPS - 1 :], real[:, -1:]
    windows = [_taken(window, before.gather(1, one), first), _taken(window, one, first), x]
    newest = torch.cat((before.gather(1, now), now), 1)
    return torch.cat(windows, -1), _taken(window, newest, first[:, -1:])


def _taken(window: torch.Tensor, slots: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """The rows of `window` at `slots` [B, T], zeros for those before `first`, where the document begins."""
    rows = window.gather(1, slots[..., None].expand(-1, -1, window.shape[2]))
    return rows.masked_fill((slots < first)[..., None], 0.0)

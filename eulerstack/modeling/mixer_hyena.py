"""The Hyena operator of order N (Poli et al. 2023, Hyena Hierarchy, definition 3.1 and section 3.3).

    x_1, ..., x_N, z_1 = conv(in_proj(input))                 the short depthwise convolution, K taps
    z_{n+1} = x_n * (h_n conv z_n + D_n * z_n)                out_proj(z_{N+1})
    h_n[t] = exp(-r t / L) * MLP(features(t / L))[n]          the implicit filters, one value per channel
    features(s) = s, cos(2 pi f s), sin(2 pi f s), f = 1, ..., 16         sine activations, sin(frequency * Wx + b)

L is the length the model is made for, so a filter is the same however many tokens a call has, and goes on beyond L. The
rates r are spread over the channels, from filter_decay / D to filter_decay.

B batch, T tokens of the call, S past and present tokens, P past ones, D d_model, F width of the MLP, E features.
"""

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Constant, Init, Normal, Rule, Sampled
from .op_conv import ShortConv
from .op_long_conv import long_conv
from .op_precision import own_precision, wide

State = dict[str, torch.Tensor]
BANDS = 16  # of the features; E = 2 BANDS + 1
SINE_LAYERS = 3
SINE_FREQUENCY = 14.0  # at the start (appendix A.1)
ROOM = 256  # filters that are held are made for a multiple of so many tokens


class FilterLayer(nn.Module):
    """W x + b in the dtype of `x`. `gain` scales the first weights."""

    def __init__(self, fan_in: int, fan_out: int, *, bias: bool, gain: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in))
        self.bias = nn.Parameter(torch.empty(fan_out)) if bias else None
        self.gain = gain

    def initial(self, init: Init) -> dict[str, Rule]:
        """Uniform within 1 / sqrt(fan_in), whatever the model's scheme: the shape of a filter is no matter of width."""
        bound = self.gain / math.sqrt(self.weight.shape[1])
        rule = Sampled(lambda uniform: (2.0 * uniform - 1.0) * bound)
        return {"weight": rule} | ({"bias": rule} if self.bias is not None else {})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class ImplicitFilter(nn.Module):
    """N long filters of D channels, as functions of the distance."""

    def __init__(self, order: int, channels: int, hidden: int, decay: float, length: int):
        super().__init__()
        self.order, self.channels, self.decay, self.length = order, channels, decay, length
        widths = [2 * BANDS + 1] + [hidden] * SINE_LAYERS
        layers = [FilterLayer(a, b, bias=True) for a, b in pairwise(widths)]
        # A filter of L taps starts with about the energy of one tap, so that a long sum is no louder than its input.
        last = FilterLayer(hidden, order * channels, bias=False, gain=length**-0.5)
        self.layers = nn.ModuleList([*layers, last])
        self.frequency = nn.Parameter(torch.empty(hidden))
        self.made_for, self.made = None, None

    def initial(self, init: Init) -> dict[str, Rule]:
        return {"frequency": Constant(SINE_FREQUENCY)}

    def forward(self, taps: int) -> torch.Tensor:
        """The filters at distances 0 to taps - 1, `[N, taps, D]`, at least float32."""
        frequency = wide(self.frequency)
        with own_precision(frequency.device):
            taps = torch.arange(taps, device=frequency.device)[:, None]
            turned = taps * torch.arange(1, BANDS + 1, device=frequency.device) % self.length  # exact, unlike f t / L
            time, turns = (t.to(frequency.dtype) / self.length for t in (taps, turned))
            angles = 2 * math.pi * turns
            x = torch.cat((time, angles.cos(), angles.sin()), 1)
            for layer in self.layers[:-1]:
                x = torch.sin(frequency * layer(x))
            h = self.layers[-1](x).unflatten(1, (self.order, -1)).transpose(0, 1)
            return h * self._window(time) if self.decay else h

    def held(self, taps: int, *, fresh: bool) -> torch.Tensor:
        """As `forward`, without gradients, from the filters made in an earlier call where they reach: a token that is
        decoded needs all of them, and making them costs more than the rest. A `fresh` sequence makes them anew."""
        made_for = [(0 if p.is_inference() else p._version, p.dtype, p.device) for p in self.parameters()]
        if fresh or made_for != self.made_for or self.made.shape[1] < taps:
            self.made_for, self.made = made_for, self(taps + -taps % ROOM)
        return self.made[:, :taps]

    def _window(self, time: torch.Tensor) -> torch.Tensor:
        """exp(-r t / L) `[taps, D]`."""
        share = torch.arange(1, self.channels + 1, device=time.device).to(time.dtype) / self.channels
        return torch.exp(-self.decay * share * time)


class Mixer(nn.Module):
    """Input and output `[B, T, D]`. State: `past` `[B, P, N, D]`, the inputs of the long convolutions, and `conv`
    `[B, (N+1) D, K-1]`, the last inputs of the short one, all in the model's dtype: convolutions read rounded inputs,
    with and without a cache alike."""

    def __init__(self, config, layer_idx: int, *, depth: int, filter_hidden: int, filter_decay: float, short_conv: int):
        super().__init__()
        self.config, self.layer_idx, self.depth = config, layer_idx, depth
        d_model = config.hidden_size
        self.in_proj = nn.Linear(d_model, (depth + 1) * d_model, bias=False)
        self.short_conv = ShortConv((depth + 1) * d_model, short_conv, bias=True)
        self.filter = ImplicitFilter(depth, d_model, filter_hidden, filter_decay, config.max_position_embeddings)
        self.D = nn.Parameter(torch.empty(depth, d_model))
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj.to_residual = True

    def initial(self, init: Init) -> dict[str, Rule]:
        return {"D": Normal(1.0)}

    def forward(self, x: torch.Tensor, context: Context, state: State | None) -> tuple[torch.Tensor, State | None]:
        x, tail = self.short_conv(self.in_proj(x), context, state["conv"] if state is not None else None)
        *gates, z = x.chunk(self.depth + 1, dim=-1)
        past = state["past"] if state is not None else z.new_empty(len(z), 0, self.depth, z.shape[-1])
        filters, inputs = self._filters(past.shape[1] + z.shape[1], context, state is None), []
        for n, gate in enumerate(gates):
            u = torch.cat((past[:, :, n], z), 1) if past.shape[1] else z
            inputs.append(u)
            y = torch.addcmul(long_conv(wide(u), filters[n], context), wide(z), wide(self.D[n]))
            z = gate * y.to(gate.dtype)
        return self.out_proj(z), {"past": torch.stack(inputs, 2), "conv": tail} if context.use_cache else None

    def _filters(self, taps: int, context: Context, fresh: bool) -> torch.Tensor:
        if context.use_cache and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return self.filter.held(taps, fresh=fresh)
        return self.filter(taps)

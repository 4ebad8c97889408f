"""Mamba-2 (Dao & Gu 2024, Transformers are SSMs, section 7 and figure 6).

    z, xBC, dt = in_proj(input)              x, B, C = silu(conv1d(xBC))
    step = softplus(dt + dt_bias)            A = -exp(A_log)
    h_t = exp(step_t A) h_{t-1} + step_t x_t B_t^T      (each head; B and C are shared by the heads of a group)
    y_t = h_t C_t + D x_t                               out_proj(norm(y silu(z)))

B batch, T tokens, D d_model, C = expand d_model channels in H heads of P = head_dim, G = n_groups, N = d_state states
of a channel, K = d_conv taps of the convolution. The norm is over the channels of each group alone.
"""

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Constant, Init, Rule, Sampled
from .op_conv import ShortConv
from .op_precision import wide
from .op_ssd import ssd
from .op_timestep import log_counts, step_bias, step_sizes

State = dict[str, torch.Tensor]


class GatedRMSNorm(nn.Module):
    """RMSNorm of y silu(z), over each of G groups of features alone. y, z `[B, T, C]`; result in the dtype of z."""

    def __init__(self, d: int, eps: float, groups: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps, self.groups = eps, groups

    def initial(self, init: Init) -> dict[str, Rule]:
        return {"weight": Constant(1.0)}

    def forward(self, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        y = (y * F.silu(wide(z))).unflatten(-1, (self.groups, -1))
        y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).flatten(-2)
        return self.weight.to(z.dtype) * y.to(z.dtype)


class Mixer(nn.Module):
    """Input and output `[B, T, D]`. State: `conv` `[B, C + 2 G N, K-1]`, the last inputs of the convolution, in their
    dtype, and `ssm` `[B, H, P, N]`, at least float32."""

    def __init__(
        self,
        config,
        layer_idx: int,
        *,
        d_state: int,
        d_conv: int,
        expand: int,
        head_dim: int,
        n_groups: int,
        chunk_size: int,
        conv_bias: bool,
        bias: bool,
    ):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim, self.n_groups, self.chunk_size = head_dim, n_groups, chunk_size
        d_model, channels = config.hidden_size, int(expand * config.hidden_size)
        heads, shared = channels // head_dim, n_groups * d_state
        self.splits = [channels, channels + 2 * shared, heads]
        self.conv_splits = [channels, shared, shared]
        self.in_proj = nn.Linear(d_model, sum(self.splits), bias=bias)
        self.conv1d = ShortConv(sum(self.conv_splits), d_conv, conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads))
        self.D = nn.Parameter(torch.empty(heads))
        self.norm = GatedRMSNorm(channels, config.rms_norm_eps, n_groups)
        self.out_proj = nn.Linear(channels, d_model, bias=bias)
        self.out_proj.to_residual = True

    def initial(self, init: Init) -> dict[str, Rule]:
        return {"dt_bias": Sampled(step_bias), "A_log": Sampled(log_counts), "D": Constant(1.0)}

    def forward(self, x: torch.Tensor, context: Context, state: State | None) -> tuple[torch.Tensor, State | None]:
        tail, before = (state["conv"], state["ssm"]) if state is not None else (None, None)
        z, x, dt = self.in_proj(x).split(self.splits, dim=-1)
        x, tail = self.conv1d(x, context, tail)
        x, B, C = F.silu(x).split(self.conv_splits, dim=-1)
        x = wide(x).unflatten(-1, (-1, self.head_dim))
        B, C = (t.unflatten(-1, (self.n_groups, -1)) for t in (B, C))
        step = step_sizes(wide(dt) + wide(self.dt_bias), context.keep)
        exponents = -wide(self.A_log).exp() * step
        y, last = ssd(x * step[..., None], exponents, B, C, self.chunk_size, before, context.starts)
        y = (y + x * wide(self.D)[:, None]).flatten(-2)
        return self.out_proj(self.norm(y, z)), {"conv": tail, "ssm": last} if context.use_cache else None

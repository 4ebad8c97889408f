"""Mamba (Gu & Dao 2023, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, section 3 and figure 3).

    x, z = in_proj(input)                    x = silu(conv1d(x))
    dt, B, C = x_proj(x)                     step = softplus(dt_proj(dt))        A = -exp(A_log)
    h_t[c, n] = exp(step_t[c] A[c, n]) h_{t-1}[c, n] + step_t[c] B_t[n] x_t[c]
    y_t[c] = sum_n C_t[n] h_t[c, n] + D[c] x_t[c]                                out_proj(y silu(z))

B batch, T tokens, D d_model, C = expand d_model channels, N = d_state states of a channel, K = d_conv taps of the
convolution, R = dt_rank. With `inner_norm`, dt, B and C each pass an RMSNorm (Lieber et al. 2024, Jamba, section 2).
"""

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Constant, Init, Rule, Sampled
from .norm import RMSNorm
from .op_conv import ShortConv
from .op_precision import wide
from .op_scan import selective_scan
from .op_timestep import log_counts, step_bias, step_sizes

State = dict[str, torch.Tensor]


class StepProjection(nn.Linear):
    """From the R features of the time step to its C logits. The bias is added in float32: the logits of the small
    first steps are near -5, where bfloat16 would round what the tokens add to them."""

    def initial(self, init: Init) -> dict[str, Rule]:
        """The paper's section 3.6: weights uniform within R^-0.5, biases that give log-uniform steps."""
        bound = self.in_features**-0.5
        return {"weight": Sampled(lambda uniform: (2.0 * uniform - 1.0) * bound), "bias": Sampled(step_bias)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return wide(F.linear(x, self.weight)) + wide(self.bias)


class Mixer(nn.Module):
    """Input and output `[B, T, D]`. State: `conv` `[B, C, K-1]`, the last inputs of the convolution, in their dtype,
    and `ssm` `[B, C, N]`, at least float32."""

    def __init__(
        self,
        config,
        layer_idx: int,
        *,
        d_state: int,
        d_conv: int,
        expand: int,
        dt_rank: int,
        conv_bias: bool,
        bias: bool,
        inner_norm: bool,
    ):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        d_model, channels = config.hidden_size, int(expand * config.hidden_size)
        self.splits = [dt_rank, d_state, d_state]
        self.in_proj = nn.Linear(d_model, 2 * channels, bias=bias)
        self.conv1d = ShortConv(channels, d_conv, conv_bias)
        self.x_proj = nn.Linear(channels, sum(self.splits), bias=False)
        self.dt_proj = StepProjection(dt_rank, channels)
        self.A_log = nn.Parameter(torch.empty(channels, d_state))
        self.D = nn.Parameter(torch.empty(channels))
        self.out_proj = nn.Linear(channels, d_model, bias=bias)
        self.out_proj.to_residual = True
        norms = [RMSNorm(d, config.rms_norm_eps) if inner_norm else None for d in self.splits]
        self.dt_norm, self.b_norm, self.c_norm = norms

    def initial(self, init: Init) -> dict[str, Rule]:
        return {"A_log": Sampled(log_counts), "D": Constant(1.0)}

    def forward(self, x: torch.Tensor, context: Context, state: State | None) -> tuple[torch.Tensor, State | None]:
        tail, before = (state["conv"], state["ssm"]) if state is not None else (None, None)
        x, z = self.in_proj(x).chunk(2, dim=-1)
        x, tail = self.conv1d(x, context, tail)
        x = F.silu(x)
        dt, B, C = self.x_proj(x).split(self.splits, dim=-1)
        if self.dt_norm is not None:
            dt, B, C = self.dt_norm(dt), self.b_norm(B), self.c_norm(C)
        step = step_sizes(self.dt_proj(dt), context.keep)
        y, last = selective_scan(x, step, -wide(self.A_log).exp(), B, C, before, context.starts)
        y = (y + x * wide(self.D)) * F.silu(wide(z))
        return self.out_proj(y.to(x.dtype)), {"conv": tail, "ssm": last} if context.use_cache else None

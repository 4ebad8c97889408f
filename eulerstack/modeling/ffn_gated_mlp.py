"""The gated feed-forward layer, down(gated(gate(x), up(x))), where gated is mostly act(gate) * up.

Reference: Shazeer 2020, GLU Variants Improve Transformer, equation 6.

B batch, T tokens, D model width, F feed-forward width.
"""

import torch
from torch import nn

from .context import Context
from .op_activation import gating


class FFN(nn.Module):
    """[B, T, D] -> [B, T, D] through two [B, T, F]."""

    def __init__(self, config, layer_idx: int, *, d_ff: int, activation: str, bias: bool):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.gate_proj = nn.Linear(config.hidden_size, d_ff, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, config.hidden_size, bias=bias)
        self.down_proj.to_residual = True
        self.gated = gating(activation)

    def forward(self, x: torch.Tensor, context: Context) -> tuple[torch.Tensor, None]:
        return self.down_proj(self.gated(self.gate_proj(x), self.up_proj(x))), None

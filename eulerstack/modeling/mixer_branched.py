"""Several mixers side by side, and a gate that weighs what they give for each token.

    g_t = softmax(W x_t)        learned_gate: over all branches; top_k: over the k largest, the others are 0
    y_t = sum over branches i of g_t[i] mixer_i(x)_t

Every branch runs over every token, whatever weight it gets there: a recurrence needs all of them. The gate is that of
a mixture of experts (Shazeer et al. 2017, section 2.1) whose experts are mixers.

B batch, T tokens, D d_model, N branches.
"""

import torch
from torch import nn

from .context import Context
from .op_precision import wide
from .op_state import State, named, under

SELECTORS = ("learned_gate", "top_k")


class Mixer(nn.Module):
    """`branches` maps a name to a built mixer; they count in the order of their names, since a file of JSON may have
    been sorted. Input and output [B, T, D]. State: that of each branch, under `<its module's name>.`."""

    def __init__(self, config, layer_idx: int, *, branches: dict[str, nn.Module], selector: str, top_k: int):
        super().__init__()
        if selector not in SELECTORS:
            raise ValueError(f"unknown selector {selector!r}; one of {', '.join(SELECTORS)}")
        self.config, self.layer_idx = config, layer_idx
        self.top_k = top_k if selector == "top_k" else len(branches)
        self.gate = nn.Linear(config.hidden_size, len(branches), bias=False)
        self.names = [module_name(name) for name in sorted(branches)]
        for name in sorted(branches):
            self.add_module(module_name(name), branches[name])
        self.croppable = all(getattr(mixer, "croppable", False) for mixer in branches.values())

    def forward(self, x: torch.Tensor, context: Context, state: State | None) -> tuple[torch.Tensor, State | None]:
        weights, y, kept = self.weights(x).unbind(-1), 0, {}
        for name, weight in zip(self.names, weights, strict=True):
            z, after = getattr(self, name)(x, context, under(f"{name}.", state))
            y = y + weight[..., None] * z
            kept |= named(f"{name}.", after)
        return y, kept if context.use_cache else None

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        """The weight of each branch [B, T, N], in the dtype of `x` [B, T, D]; softmax in float32 or wider."""
        logits = wide(self.gate(x))
        if self.top_k < logits.shape[-1]:
            chosen = torch.zeros_like(logits, dtype=torch.bool)
            chosen.scatter_(-1, logits.topk(self.top_k, dim=-1).indices, True)
            logits = logits.masked_fill(~chosen, -torch.inf)
        return logits.softmax(-1).to(x.dtype)


def module_name(branch: str) -> str:
    """`branch_<its name>`, escaped as in an address: a "." would nest modules, a "/" the states of a layer."""
    return "branch_" + branch.replace("%", "%25").replace(".", "%2E").replace("/", "%2F")

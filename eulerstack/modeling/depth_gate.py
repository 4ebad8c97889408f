"""Mixture-of-Depths: a layer that only some tokens pass through; the others keep what the residual stream holds.

Reference: Raposo et al. 2024, Mixture-of-Depths, section 3. With u = rms(x), f the layer and r = W u + b the score,

    chosen tokens   x + g (f(x) - x)       all others   x
    g = 2 sigmoid(r)  (top_k)              g = sigmoid(r)  (learned_gate)

In training the ceil(capacity n) tokens of largest r of each document pass, n its tokens; they are gathered, so that the
layer sees and pays for no others. To know the largest r takes the whole document, so in evaluation, and wherever a
cache is in use, each token decides for itself: it passes if p > 0, where p is a small network of u (top_k; section 3.5,
the second method) or r itself (learned_gate; the first). A binary cross entropy trains p to tell the tokens that the
capacity chose; its gradient stops at u. Tokens that do not pass are padding to the layer: they take no place in a
window of attention, and a recurrence does not see them.

B batch, T tokens, P past tokens, S = P + T, K tokens gathered, D d_model, n residual streams of a hyper-connection.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Constant, Init, Rule
from .op_depth import best, gathered, masked
from .op_precision import own_precision, wide

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class DepthRecord:
    """What a gate decided in one training pass: the decision of each token for itself, and that of the capacity."""

    logits: torch.Tensor  # [B, T], p
    chosen: torch.Tensor  # [B, T] bool
    keep: torch.Tensor | None  # [B, T] bool, False on padding; None: every token is real


@dataclass(frozen=True)
class Choice:
    """What the layer is to see, and what `restore` needs; `state` and `record` are None where there are none."""

    x: torch.Tensor  # [B, T or K, ...]
    context: Context  # of `x`: tokens that are not chosen are padding
    weight: torch.Tensor  # [B, T or K], g
    slots: torch.Tensor | None  # [B, K] int: where in the call the gathered tokens stand; None: all are there
    state: State | None = None
    record: DepthRecord | None = None


class Scorer(nn.Module):
    """A linear map in float32 or wider; bare parameters, so that adapters put on every linear layer leave it alone."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out))

    def initial(self, init: Init) -> dict[str, Rule]:
        return {"weight": init.matrix(self.weight.shape[1]), "bias": Constant(0.0)}

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return F.linear(u, self.weight.to(u.dtype), self.bias.to(u.dtype))


class DepthGate(nn.Module):
    """`choose` before the layer, `restore` after it. State: `history` [B, P], of `masked`."""

    croppable = True

    def __init__(self, config, layer_idx: int, *, capacity: float, router: str):
        super().__init__()
        if router not in ("top_k", "learned_gate"):
            raise ValueError(f"unknown router {router!r}; one of top_k, learned_gate")
        self.config, self.layer_idx, self.capacity = config, layer_idx, capacity
        self.eps, self.predicts = config.rms_norm_eps, router == "top_k"
        d, hidden = config.hidden_size, max(8, config.hidden_size // 16)
        self.router = Scorer(d, 1)
        if self.predicts:
            self.predictor_up, self.predictor_down = Scorer(d, hidden), Scorer(hidden, 1)

    def choose(self, x: torch.Tensor, context: Context, state: State | None) -> Choice:
        """The tokens of `x` [B, T, D] or [B, T, n, D] that pass; of several streams the mean decides."""
        with own_precision(x.device):
            u = self._normed(x if x.dim() == 3 else x.mean(2))
            score = self.router(u).squeeze(-1)
            logits = self._decision(u, score)
        weight = 2.0 * score.sigmoid() if self.predicts else score.sigmoid()
        if self.training:
            weight = weight + 0.0 * logits  # so that the predictor has a gradient where nobody adds its loss
        if self.training and not context.use_cache and not context.past:
            chosen = best(score.detach(), self.capacity, context)
            slots, inner = gathered(chosen, context, self._by_name())
            taken = x.gather(1, _like(slots, x).expand(-1, -1, *x.shape[2:]))
            return Choice(
                taken, inner, weight.gather(1, slots), slots, record=DepthRecord(logits, chosen, context.keep)
            )
        inner, history = masked(logits > 0, context, None if state is None else state["history"])
        return Choice(x, inner, weight, None, state={"history": history} if context.use_cache else None)

    def restore(self, x: torch.Tensor, y: torch.Tensor, choice: Choice) -> torch.Tensor:
        """`x` of `choose`, moved by g where a token passed; `y` is what the layer made of `choice.x`."""
        step = (_like(choice.weight, y) * (y - choice.x)).to(x.dtype)
        if choice.context.keep is not None:
            step = step.masked_fill(~_like(choice.context.keep, y), 0.0)
        return x + step if choice.slots is None else x.scatter_add(1, _like(choice.slots, x).expand_as(step), step)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        x = wide(x)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def _decision(self, u: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
        """p [B, T], with gradients to the parameters of the gate alone."""
        if self.predicts:
            return self.predictor_down(F.silu(self.predictor_up(u.detach()))).squeeze(-1)
        return self.router(u.detach()).squeeze(-1) if self.training else score

    def _by_name(self) -> bool:
        """Whether attention runs in a kernel that is told of padding by mask and of documents by their places only."""
        return (self.config._attn_implementation or "eager") not in ("eager", "sdpa")

    @staticmethod
    def aux_loss(gates: list["DepthGate"], records: list[DepthRecord], coef: float) -> torch.Tensor:
        """The sum over gates of the mean binary cross entropy of their decisions, a scalar, divided by `coef`, by which
        it will be multiplied; 0 where that is 0."""
        total = torch.zeros((), device=records[0].logits.device)
        for record in records if coef else ():
            loss = F.binary_cross_entropy_with_logits(record.logits, record.chosen.to(record.logits), reduction="none")
            real = torch.ones_like(record.chosen) if record.keep is None else record.keep
            total = total + ((loss * real).sum() / real.sum().clamp(min=1)).to(total.device)
        return total / coef if coef else total


def _like(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`values` [B, T] with the axes that `x` [B, T, ...] has beyond."""
    return values.view(*values.shape, *[1] * (x.dim() - 2))

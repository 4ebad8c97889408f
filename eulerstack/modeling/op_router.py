"""Which experts a token goes to and with what weight; the losses and the bias that keep the choice balanced.

B batch, T tokens, D d_model, E experts, K top_k. A token x has logits W x, affinities s = affinity(W x), and goes to
the K experts with the largest s (or s + b, where b is the correction bias) with weights taken from s.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Constant, Init, Normal, Rule

_AFFINITIES = ("softmax", "sigmoid", "sqrt_softplus")


@dataclass(frozen=True)
class RouterRecord:
    """What one router decided in one forward pass: enough for the auxiliary losses and the correction bias."""

    logits: torch.Tensor  # [B, T, E]
    selected: torch.Tensor  # [B, T, K] int


def affinity(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """Affinities of each token to each expert, `[..., E] -> [..., E]`, in float32 (float64 stays).

    softmax: over the experts (Fedus et al. 2021, Switch Transformers, equation 1). sigmoid: each expert for itself
    (DeepSeek-V3, equation 15). sqrt_softplus: sqrt(log(1 + exp(x))) (DeepSeek-V4).
    """
    x = logits.to(_at_least_float32(logits.dtype))
    if kind == "softmax":
        return x.softmax(-1)
    if kind == "sigmoid":
        return x.sigmoid()
    # Far below zero it is exp(x / 2), whose gradient is finite where softplus underflows. The branch that `where` does
    # not take must stay finite too: zero times infinity is not zero.
    return torch.where(x < -30, (x.clamp(max=0) / 2).exp(), F.softplus(x.clamp(min=-30)).sqrt())


def count(selected: torch.Tensor, experts: int, keep: torch.Tensor | None = None) -> torch.Tensor:
    """How many assignments each expert got, `[..., K] -> [E]` int; `keep` `[...]` leaves padding out."""
    counted = torch.ones_like(selected) if keep is None else keep.unsqueeze(-1).expand_as(selected).long()
    return torch.zeros(experts, dtype=torch.long, device=selected.device).scatter_add_(
        0, selected.flatten(), counted.flatten()
    )


def balance_loss(records: list[RouterRecord], kind: str, keep: torch.Tensor | None) -> torch.Tensor:
    """E * sum_e f_e P_e over the tokens of all layers given, a scalar; K when the load is even.

    f_e is the share of tokens that chose expert e and P_e its mean probability (Switch Transformers, equations 4 to
    6, as Mixtral counts them: K assignments a token, layers concatenated). The probabilities are the affinities over
    their sum (DeepSeek-V3, equation 19), which changes nothing for softmax. Padding (`keep` False) does not count.
    """
    device, experts = records[0].logits.device, records[0].logits.shape[-1]
    load = mass = 0
    for record in records:  # layers may live on different devices
        scores = affinity(record.logits, kind)
        probabilities = scores / (scores.sum(-1, keepdim=True) + 1e-20)
        seen = _on(keep, record.logits.device)
        load = load + count(record.selected, experts, seen).to(device)
        mass = mass + _sum_over_tokens(probabilities, seen).to(device)
    rows = _tokens(records, keep)
    return experts * (load / rows * (mass / rows)).sum()


def z_loss(records: list[RouterRecord], keep: torch.Tensor | None) -> torch.Tensor:
    """Mean over the tokens of all layers given of logsumexp(logits)^2 (Zoph et al. 2022, ST-MoE, equation 5)."""
    device, total = records[0].logits.device, 0
    for record in records:
        square = record.logits.to(_at_least_float32(record.logits.dtype)).logsumexp(-1, keepdim=True).square()
        total = total + _sum_over_tokens(square, _on(keep, record.logits.device)).sum().to(device)
    return total / _tokens(records, keep)


class Router(nn.Module):
    """Scores every expert for every token and picks K.

    `weight` is a bare parameter, so that adapters put on every linear layer leave the router alone. With the
    correction bias (Wang et al. 2024, Auxiliary-Loss-Free Load Balancing) a buffer `correction_bias` `[E]` is added
    to the affinities when experts are chosen, never to the weights. It stays in float32 when the model is cast to
    half precision: its steps would be rounded away.
    """

    def __init__(
        self,
        config,
        *,
        experts: int,
        top_k: int,
        affinity: str,
        normalize_top_k: bool,
        routed_scale: float,
        router_init_std: float | None,
        router_jitter: float,
        bias_correction: dict,
    ):
        super().__init__()
        if affinity not in _AFFINITIES:
            raise ValueError(f"unknown affinity {affinity!r}; one of {', '.join(_AFFINITIES)}")
        self.experts, self.top_k, self.affinity = experts, top_k, affinity
        self.normalize, self.scale, self.jitter = normalize_top_k, routed_scale, router_jitter
        self.init_std, self.correction = router_init_std, bias_correction
        self.in_float32 = config.dtype_policy == "layered_safe"
        self.weight = nn.Parameter(torch.empty(experts, config.hidden_size))
        if bias_correction["enabled"]:
            self.register_buffer("correction_bias", torch.zeros(experts, dtype=torch.float32))

    def initial(self, init: Init) -> dict[str, Rule]:
        weight = init.matrix(self.weight.shape[1]) if self.init_std is None else Normal(self.init_std)
        return {"weight": weight} | ({"correction_bias": Constant(0.0)} if self.correction["enabled"] else {})

    def forward(self, x: torch.Tensor, context: Context) -> tuple[torch.Tensor, RouterRecord]:
        """`x` [B, T, D] -> the weights of the chosen experts [B, T, K], float32 or wider, and the record."""
        logits = self._logits(x)
        scores = affinity(logits, self.affinity)
        choice = scores.detach()
        if self.correction["enabled"]:
            choice = choice + self._bias_of_this_call(context)
        selected = choice.topk(self.top_k, dim=-1).indices
        weights = scores.gather(-1, selected)
        if self.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.scale, RouterRecord(logits, selected)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.jitter > 0:  # the router alone sees the noise (Switch Transformers, table 2)
            x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
        if not self.in_float32:
            return F.linear(x, self.weight)
        wide = _at_least_float32(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(wide), self.weight.to(wide))

    def _bias_of_this_call(self, context: Context) -> torch.Tensor:
        """The bias as this call first saw it: a checkpointed layer runs again after the bias has moved on."""
        if not self.training:
            return self.correction_bias
        return context.memo.setdefault(("correction_bias", id(self)), self.correction_bias.clone())

    @torch.no_grad()
    def update_bias(self, selected: torch.Tensor, keep: torch.Tensor | None) -> None:
        """Move each expert's bias by `update_rate` against the sign of its load error (DeepSeek-V3, section 2.1.2).

        An expert whose load is within `target_imbalance` of the mean, as a share of the mean, keeps its bias. Loads
        are summed over all processes of a distributed run, so that every replica takes the same step.
        """
        load = count(selected, self.experts, keep).float()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(load)
        error = load - load.mean()
        step = torch.where(error.abs() > self.correction["target_imbalance"] * load.mean(), -error.sign(), 0.0)
        self.correction_bias += self.correction["update_rate"] * step

    def _apply(self, fn, recurse=True):
        before = self._buffers.get("correction_bias")
        super()._apply(fn, recurse)
        if before is not None and self.correction_bias.dtype in (torch.bfloat16, torch.float16):
            self.correction_bias = before.to(self.correction_bias.device)
        return self


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _on(keep: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if keep is None else keep.to(device)


def _sum_over_tokens(values: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """`[B, T, X] -> [X]`, padding left out."""
    return (values if keep is None else values.masked_fill(~keep.unsqueeze(-1), 0.0)).sum((0, 1))


def _tokens(records: list[RouterRecord], keep: torch.Tensor | None):
    """Real tokens times layers, at least one."""
    if keep is None:
        return len(records) * records[0].logits.shape[:-1].numel()
    return len(records) * keep.sum().clamp(min=1).to(records[0].logits.device)

"""The router of a mixture: which experts a token goes to and with what weight, and the bias that evens the choice.

B batch, T tokens, D d_model, E experts, K top_k. A token x has logits h = W x (+ a learned bias), affinities
s = affinity(h), and goes to the K experts with the largest s (or s + b, where b is the correction bias; or those that
a hash of its id names) with weights taken from s.
"""

import torch
from torch import nn
from torch.nn import functional as F

from .context import Context
from .initial import Constant, Init, Normal, Rule
from .op_balance import RouterRecord
from .op_precision import own_precision, wide
from .op_routing import AFFINITIES, affinity, hash_experts, within_groups


class Router(nn.Module):
    """Scores every expert for every token and picks K.

    `weight` is a bare parameter, so that adapters put on every linear layer leave the router alone; `bias` `[E]` is
    learned with it and is part of the logits. With the correction bias (Wang et al. 2024, Auxiliary-Loss-Free Load
    Balancing) a buffer `correction_bias` `[E]` is added to the affinities when experts are chosen, never to the
    weights. It stays in float32 when the model is cast to half precision: its steps would be rounded away.
    `group_limit` None: a token may use every group.
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
        router_bias: bool,
        router_init_std: float | None,
        router_jitter: float,
        bias_correction: dict,
        routing: dict,
        groups: int | None,
        group_limit: int | None,
    ):
        super().__init__()
        if affinity not in AFFINITIES:
            raise ValueError(f"unknown affinity {affinity!r}; one of {', '.join(AFFINITIES)}")
        if routing["type"] not in ("learned", "hash"):
            raise ValueError(f"unknown routing {routing['type']!r}; one of learned, hash")
        self.experts, self.top_k, self.affinity = experts, top_k, affinity
        self.normalize, self.scale, self.jitter = normalize_top_k, routed_scale, router_jitter
        self.init_std, self.correction = router_init_std, bias_correction
        self.salt = routing["hash_salt"] if routing["type"] == "hash" else None
        self.groups, self.group_limit = groups, group_limit
        self.in_float32 = config.dtype_policy == "layered_safe"
        self.weight = nn.Parameter(torch.empty(experts, config.hidden_size))
        self.bias = nn.Parameter(torch.empty(experts)) if router_bias else None
        if bias_correction["enabled"]:
            self.register_buffer("correction_bias", torch.zeros(experts, dtype=torch.float32))

    def initial(self, init: Init) -> dict[str, Rule]:
        weight = init.matrix(self.weight.shape[1]) if self.init_std is None else Normal(self.init_std)
        zeros = ["bias"] * (self.bias is not None) + ["correction_bias"] * self.correction["enabled"]
        return {"weight": weight} | dict.fromkeys(zeros, Constant(0.0))

    def forward(self, x: torch.Tensor, context: Context) -> tuple[torch.Tensor, RouterRecord]:
        """`x` [B, T, D] -> the weights of the chosen experts [B, T, K], float32 or wider, and the record.

        Raises ValueError where a hash is to choose and the context has no token ids.
        """
        logits = self._logits(x)
        scores = affinity(logits, self.affinity)
        selected = self._chosen(scores.detach(), context)
        weights = scores.gather(-1, selected)
        if self.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        documents = None if context.starts is None else context.starts.long().cumsum(1)
        weights = weights if self.scale == 1 else weights * self.scale
        return weights, RouterRecord(logits, selected, context.keep, documents)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.jitter > 0:  # the router alone sees the noise (Switch Transformers, table 2)
            x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
        if not self.in_float32:
            return F.linear(x, self.weight, self.bias)
        with own_precision(x.device):
            return F.linear(wide(x), wide(self.weight), None if self.bias is None else wide(self.bias))

    def _chosen(self, choice: torch.Tensor, context: Context) -> torch.Tensor:
        """The experts of each token, [B, T, K] int, the best first (of a hash: in the order drawn)."""
        if self.salt is not None:
            if context.input_ids is None:
                raise ValueError("these experts are chosen by a hash of the token ids; give input_ids")
            return hash_experts(context.input_ids, self.salt, self.experts, self.top_k)
        corrected = self.correction["enabled"]
        if corrected:
            choice = choice + self._bias_of_this_call(context)
        if self.group_limit is not None:
            choice = within_groups(choice, self.groups, self.group_limit, best=2 if corrected else 1)
        return choice.topk(self.top_k, dim=-1).indices

    def _bias_of_this_call(self, context: Context) -> torch.Tensor:
        """The bias as this call first saw it: a checkpointed layer runs again after the bias has moved on."""
        if not self.training:
            return self.correction_bias
        memo = context.memo.get("call", context.memo)  # a layer that only some tokens reach has a memo of its own
        return memo.setdefault(("correction_bias", id(self)), self.correction_bias.clone())

    @torch.no_grad()
    def update_bias(self, load: torch.Tensor) -> None:
        """Move each expert's bias by `update_rate` against the sign of its load error (DeepSeek-V3, section 2.1.2).

        `load` [E] int are the assignments of a training step. An expert whose load is within `target_imbalance` of the
        mean, as a share of the mean, keeps its bias. Loads are summed over all processes of a distributed run, so that
        every replica takes the same step.
        """
        load = load.float()
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

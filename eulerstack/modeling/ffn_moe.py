"""Mixture of experts: each token runs through the K of E gated MLPs its router picks, and through the shared ones.

Reference: Shazeer et al. 2017, Outrageously Large Neural Networks; Jiang et al. 2024, Mixtral; Dai et al. 2024,
DeepSeekMoE (shared experts).

    y = routed_scale * sum_{e in top K} g_e expert_e(x) + shared(x)

B batch, T tokens, D d_model, F width of one expert, E experts, K top_k, g the weights of op_router.py.
"""

from collections import defaultdict

import torch
from torch import nn

from .context import Context
from .ffn_gated_mlp import FFN as GatedMLP
from .op_balance import RouterRecord, balance_loss, count, sequence_loss, z_loss
from .op_experts import Experts, run_all, run_within_capacity
from .op_router import Router


class FFN(nn.Module):
    """`forward(x [B, T, D], context) -> (y [B, T, D], RouterRecord)`.

    `shared` is one gated MLP of width `shared_experts * shared_d_ff`: always-on experts side by side are one wider
    one. Capacity (`drop`, `pad`) limits training only: an evaluated token depends on nothing but its own sequence.
    """

    def __init__(
        self,
        config,
        layer_idx: int,
        *,
        activation: str,
        bias: bool,
        d_ff: int,
        experts: int,
        top_k: int,
        affinity: str,
        normalize_top_k: bool,
        routed_scale: float,
        shared_experts: int,
        shared_d_ff: int,
        z_loss: float,
        load_balance_coef: float,
        capacity_factor: float,
        capacity_drop_policy: str,
        router_bias: bool,
        router_init_std: float | None,
        router_jitter: float,
        bias_correction: dict,
        routing: dict,
        balance: dict,
    ):
        super().__init__()
        if capacity_drop_policy not in ("overflow", "drop", "pad"):
            raise ValueError(f"unknown capacity_drop_policy {capacity_drop_policy!r}; one of overflow, drop, pad")
        self.config, self.layer_idx = config, layer_idx
        self.z_loss, self.load_balance_coef = z_loss, load_balance_coef
        self.sequence_aux_coef = balance["sequence_aux_coef"]
        self.needs_ids = routing["type"] == "hash"
        self.capacity_factor, self.capacity_drop_policy = capacity_factor, capacity_drop_policy
        self.router = Router(
            config,
            experts=experts,
            top_k=top_k,
            affinity=affinity,
            normalize_top_k=normalize_top_k,
            routed_scale=routed_scale,
            router_bias=router_bias,
            router_init_std=router_init_std,
            router_jitter=router_jitter,
            bias_correction=bias_correction,
            routing=routing,
            groups=balance["groups"],
            group_limit=balance["group_limit"],
        )
        self.experts = Experts(config.hidden_size, experts=experts, d_ff=d_ff, activation=activation, bias=bias)
        wide = {"d_ff": shared_experts * shared_d_ff, "activation": activation, "bias": bias}
        self.shared = GatedMLP(config, layer_idx, **wide) if shared_experts else None

    def forward(self, x: torch.Tensor, context: Context) -> tuple[torch.Tensor, RouterRecord]:
        weights, record = self.router(x, context)
        flat = [t.flatten(0, 1) for t in (x, record.selected, weights)]
        if self.training and self.capacity_drop_policy != "overflow":
            keep = None if context.keep is None else context.keep.flatten()
            padded = self.capacity_drop_policy == "pad"
            limits = {"factor": self.capacity_factor, "padded": padded}
            y = run_within_capacity(self.experts, *flat, keep, number=self.router.experts, **limits)
        else:
            y = run_all(self.experts, *flat, number=self.router.experts)
        y = y.view_as(x)
        return (y if self.shared is None else y + self.shared(x, context)[0]), record

    def update_bias(self, records: list[RouterRecord]) -> None:
        """Once per training forward, outside any checkpointed function, with the records of all runs of this layer;
        does nothing without bias correction."""
        if self.router.correction["enabled"]:
            self.router.update_bias(sum(count(r.selected, self.router.experts, r.keep) for r in records))

    @staticmethod
    def aux_loss(layers: list["FFN"], records: list[RouterRecord], coef: float) -> torch.Tensor:
        """The balance, z and sequence losses of all MoE layers of one forward pass, a scalar, to be multiplied by
        `coef`.

        sum over groups of (load_balance_coef * balance_loss + z_loss * z_loss) / coef, a group being the layers with
        equal experts, top_k, affinity and coefficients, concatenated, and over layers of sequence_aux_coef *
        sequence_loss / coef. With `coef` equal to `load_balance_coef` this is Mixtral's auxiliary loss. With `coef` 0
        the losses are off: zero.
        """
        total = torch.zeros((), device=records[0].logits.device)
        if coef == 0:
            return total
        groups = defaultdict(list)
        for layer, record in zip(layers, records, strict=True):
            router = layer.router
            key = (router.experts, router.top_k, router.affinity, layer.load_balance_coef, layer.z_loss)
            groups[key].append(record)
            if layer.sequence_aux_coef:
                loss = sequence_loss(record, router.affinity)
                total = total + layer.sequence_aux_coef / coef * loss.to(total.device)
        for (_, _, affinity, balance_coef, z_coef), group in groups.items():
            if balance_coef:
                total = total + balance_coef / coef * balance_loss(group, affinity).to(total.device)
            if z_coef:
                total = total + z_coef / coef * z_loss(group).to(total.device)
        return total

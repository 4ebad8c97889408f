"""The `moe` channel mixer: a router and gated experts."""

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Literal

from pydantic import Field

from eulerstack.language.block import (
    EXT,
    Breach,
    Dims,
    NonNegativeFloat,
    NonNegativeInt,
    Plain,
    PositiveFloat,
    PositiveInt,
    Shape,
    block,
)
from eulerstack.language.ffns import gated_mlp


@block
class BiasCorrection:
    """Balancing without an auxiliary loss (Wang et al. 2024): a bias that chooses and does not weigh."""

    enabled: bool = Field(False, description="experts are chosen by affinity plus bias")
    update_rate: NonNegativeFloat = Field(1e-3, description="step of a bias after each forward pass in training")
    target_imbalance: NonNegativeFloat = Field(0.0, description="distance from the mean load, over it, that is let be")


@block
class Routing:
    """Who chooses the experts."""

    type: Literal["learned", "hash"] = Field(description="by affinity, or by a hash of the token id")
    hash_salt: int | None = Field(None, description="number that tells one hash from another (hash, which needs it)")


@block
class Balance:
    """Sequence-wise balance loss and group-limited routing (DeepSeek-V3)."""

    sequence_aux_coef: NonNegativeFloat = Field(0.0, description="weight of the balance loss of each document")
    groups: PositiveInt | None = Field(
        None,
        description="consecutive groups of experts, of one size; by default derived from experts",
        json_schema_extra=EXT,
    )
    group_limit: PositiveInt | None = Field(None, description="groups from which the experts of a token may come")


@block
class Moe:
    """Options of a mixture of experts."""

    experts: PositiveInt = Field(description="routed experts")
    top_k: PositiveInt = Field(description="experts of each token, at most all")
    router: Literal["softmax", "sigmoid"] = Field(
        "softmax", description="affinity of a token to experts, unless affinity is given"
    )
    affinity: Literal["softmax", "sigmoid", "sqrt_softplus"] | None = Field(
        None, description="affinity of a token to experts; by default what router says"
    )
    normalize_top_k: bool = Field(
        True, description="the weights of the chosen experts sum to one", json_schema_extra=EXT
    )
    routed_scale: PositiveFloat = Field(
        1.0, description="factor on the sum of the routed experts", json_schema_extra=EXT
    )
    d_ff: PositiveInt | None = Field(
        None, description="width of one expert; by default the FFN width", json_schema_extra=EXT
    )
    shared_experts: NonNegativeInt = Field(0, description="experts that every token visits")
    shared_d_ff: PositiveInt | None = Field(
        None, description="width of one shared expert; by default d_ff", json_schema_extra=EXT
    )
    z_loss: NonNegativeFloat = Field(0.0, description="weight of the router z-loss")
    load_balance_coef: NonNegativeFloat = Field(0.01, description="weight of the balance loss of Switch and Mixtral")
    capacity_factor: PositiveFloat = Field(
        1.0, description="capacity of an expert over its even share of the tokens (drop and pad)"
    )
    capacity_drop_policy: Literal["overflow", "drop", "pad"] = Field(
        "overflow", description="what happens beyond it in training: nothing, or tokens are dropped"
    )
    router_bias: bool = Field(False, description="learned bias on the logits of the router", json_schema_extra=EXT)
    router_init_std: PositiveFloat | None = Field(
        None, description="std of the router's first weights; by default that of init"
    )
    router_jitter: NonNegativeFloat = Field(
        0.0, description="multiplicative noise on the router's input, training only"
    )
    bias_correction: BiasCorrection = Field(
        BiasCorrection(), description="balancing without a loss: the bias chooses, it does not weigh"
    )
    routing: Routing = Field(Routing(type="learned"), description="who chooses the experts")
    balance: Balance = Field(Balance(), description="loss of each document, and groups of experts")


@block
class Block(Plain):
    """`ffn: {type: moe, moe: {...}}`"""

    type: Literal["moe"] = Field(description="a router and gated experts")
    activation: Literal["swiglu", "geglu", "swiglu_clamped", "gelu", "gelu_tanh", "relu", "relu2"] = Field(
        "swiglu", description="activation of the gate of each expert"
    )
    bias: bool = Field(False, description="bias on every projection of the experts")
    moe: Moe = Field(description="options of router and experts")

    def breaches(self, spec: Any) -> Iterator[Breach]:
        moe = self.moe
        if moe.top_k > moe.experts:
            what = f"top_k {moe.top_k} of {moe.experts} experts"
            yield Breach(("moe", "top_k"), what, f"choose at most {moe.experts} experts")
        if moe.shared_d_ff is not None and not moe.shared_experts:
            yield Breach(("moe", "shared_d_ff"), "no shared expert", "set shared_experts, or delete it", key=True)
        yield from self._groups()
        yield from self._routing()

    def _groups(self) -> Iterator[Breach]:
        moe, balance, where = self.moe, self.moe.balance, ("moe", "balance")
        groups, limit = groups_of(moe), balance.group_limit
        if limit is None:
            if balance.groups is not None:
                yield Breach((*where, "groups"), "no group_limit", "set group_limit, or delete it", key=True)
        elif groups is None:
            what = f"more groups than {moe.experts} experts"
            yield Breach((*where, "group_limit"), what, "use fewer groups")
        elif moe.experts % groups:
            what = f"{moe.experts} experts do not split into groups = {groups}"
            yield Breach((*where, "groups"), what, "use a divisor of experts")
        elif limit > groups:
            yield Breach((*where, "group_limit"), f"{limit} of {groups} groups", f"use at most {groups}")
        elif moe.top_k > (allowed := limit * (moe.experts // groups)):
            what = f"{limit} of {groups} groups hold {allowed} experts, and top_k is {moe.top_k}"
            yield Breach((*where, "group_limit"), what, "allow more groups, or set fewer `groups`")

    def _routing(self) -> Iterator[Breach]:
        routing, where = self.moe.routing, ("moe", "routing", "hash_salt")
        if routing.type == "hash" and routing.hash_salt is None:
            yield Breach(where, "hash routing needs a salt", "add an integer, for example `hash_salt: 982451653`")
        if routing.type == "learned" and routing.hash_salt is not None:
            yield Breach(where, "learned routing has no salt", "delete it, or set type to hash", key=True)
        if routing.type == "hash":
            yield from self._choices_of_a_hash()

    def _choices_of_a_hash(self) -> Iterator[Breach]:
        moe = self.moe
        if moe.bias_correction.enabled:
            where = ("moe", "bias_correction", "enabled")
            yield Breach(where, "a hash chooses the experts, so a bias cannot", "switch one of the two off")
        if moe.balance.group_limit is not None:
            where = ("moe", "balance", "group_limit")
            what = "a hash chooses the experts, whatever their groups"
            yield Breach(where, what, "delete it, or let routing be learned", key=True)
        if moe.balance.sequence_aux_coef > 0:
            where, what = (
                ("moe", "balance", "sequence_aux_coef"),
                "a hash chooses the experts, so no loss can even them",
            )
            yield Breach(where, what, "delete it, or let routing be learned", key=True)

    def completed(self, dims: Dims) -> "Block":
        """Where a hash chooses there is nothing to balance, so the weight of the balance loss is 0."""
        moe = self.moe
        d_ff = moe.d_ff or dims.d_ff
        written = {"affinity": moe.affinity or moe.router, "d_ff": d_ff, "shared_d_ff": moe.shared_d_ff or d_ff}
        if moe.routing.type == "hash":
            written["load_balance_coef"] = 0.0
        if moe.balance.group_limit is not None:
            written["balance"] = replace(moe.balance, groups=groups_of(moe))
        return replace(self, moe=replace(moe, **written))

    def shrunk(self, dims: Dims, small: Dims) -> "Block":
        """At most four experts, fewer of them chosen than there are wherever that was so."""
        moe, chosen = self.moe, min(self.moe.top_k, 2)
        experts = chosen if moe.top_k == moe.experts else min(moe.experts, 4)
        width, shared = (max(4, min(n * small.d_ff // dims.d_ff, small.d_ff // 2)) for n in (moe.d_ff, moe.shared_d_ff))
        top_k = min(chosen, max(1, experts - 1)) if moe.top_k < moe.experts else chosen
        few = {"experts": experts, "top_k": top_k, "shared_experts": min(moe.shared_experts, 2)}
        return replace(self, moe=replace(moe, **few, d_ff=width, shared_d_ff=shared, balance=_few_groups(moe, experts)))

    def runtime(self, dims: Dims) -> dict:
        moe = self.moe
        names = ("d_ff", "experts", "top_k", "affinity", "normalize_top_k", "routed_scale", "shared_experts")
        names += ("shared_d_ff", "z_loss", "load_balance_coef", "capacity_factor", "capacity_drop_policy")
        names += ("router_bias", "router_init_std", "router_jitter")
        options = {"type": "moe", "activation": self.activation, "bias": self.bias}
        options |= {name: getattr(moe, name) for name in names}
        return options | {name: asdict(getattr(moe, name)) for name in ("bias_correction", "routing", "balance")}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        """Experts are packed, gate and up in one; the shared experts are one gated MLP."""
        moe, d = self.moe, dims.d_model
        shapes: dict[str, Shape] = {
            "router.weight": (moe.experts, d),
            "experts.gate_up_proj": (moe.experts, 2 * moe.d_ff, d),
            "experts.down_proj": (moe.experts, d, moe.d_ff),
        }
        if moe.router_bias:
            shapes["router.bias"] = (moe.experts,)
        if self.bias:
            shapes |= {"experts.gate_up_bias": (moe.experts, 2 * moe.d_ff), "experts.down_bias": (moe.experts, d)}
        shared = gated_mlp.tensors(d, moe.shared_experts * moe.shared_d_ff, self.bias) if moe.shared_experts else {}
        return shapes | {f"shared.{name}": shape for name, shape in shared.items()}

    def buffers(self, dims: Dims) -> dict[str, Shape]:
        return {"router.correction_bias": (self.moe.experts,)} if self.moe.bias_correction.enabled else {}

    def idle(self, dims: Dims) -> int:
        """Those of the experts that a token does not visit."""
        one = gated_mlp.tensors(dims.d_model, self.moe.d_ff, self.bias)
        return (self.moe.experts - self.moe.top_k) * sum(math.prod(shape) for shape in one.values())

    def flops(self, dims: Dims, length: int) -> int:
        """The router, the chosen experts and the shared ones; capacity that is padded is not counted."""
        moe = self.moe
        width = moe.top_k * moe.d_ff + moe.shared_experts * moe.shared_d_ff
        return 2 * dims.d_model * (moe.experts + 3 * width)


def groups_of(moe: Moe) -> int | None:
    """The groups of experts of a complete block: as written, else the largest divisor of `experts` up to 8 that leaves
    two experts a group and lets `top_k` fit in `group_limit` groups (8 in DeepSeek-V2 and V3); where there is none, the
    smallest that is no less than `group_limit`, and None where there is none either."""
    limit = moe.balance.group_limit
    if moe.balance.groups is not None or limit is None:
        return moe.balance.groups
    divisors = [n for n in range(limit, moe.experts + 1) if moe.experts % n == 0]
    fitting = [n for n in divisors if n <= min(8, moe.experts // 2) and moe.top_k <= limit * (moe.experts // n)]
    return max(fitting, default=min(divisors, default=None))


def _few_groups(moe: Moe, experts: int) -> Balance:
    """Of `experts` experts, fewer than there were: two groups, one of them allowed where not all were."""
    balance = moe.balance
    if balance.group_limit is None or experts == moe.experts:
        return balance
    groups = min(balance.groups, 2, experts)
    return replace(balance, groups=groups, group_limit=groups if balance.group_limit == balance.groups else 1)

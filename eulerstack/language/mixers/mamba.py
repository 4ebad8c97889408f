"""The `mamba` mixer: selective state spaces, Mamba (Gu & Dao 2023) and Mamba-2 (Dao & Gu 2024).

C = expand d_model channels, N = d_state states of a channel, K = d_conv taps, R = dt_rank, H heads, G = n_groups.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from eulerstack.language.block import EXT, Breach, Dims, Plain, PositiveInt, Shape, block


@block
class Mamba:
    """Options of a selective state space."""

    variant: Literal["mamba1", "mamba2"] = Field("mamba2", description="the state space of which paper")
    d_state: PositiveInt = Field(64, description="state of one channel; 16 in the paper of mamba1")
    d_conv: PositiveInt = Field(4, description="taps of the short convolution")
    expand: PositiveInt = Field(2, description="inner width over d_model")
    head_dim: PositiveInt | None = Field(
        None,
        description="channels of a head (mamba2), a divisor of expand * d_model; by default 64",
        json_schema_extra=EXT,
    )
    n_groups: PositiveInt | None = Field(
        None,
        description="groups of heads that share B and C (mamba2), a divisor of the heads; by default 1",
        json_schema_extra=EXT,
    )
    chunk_size: PositiveInt | None = Field(
        None, description="tokens computed at once (mamba2); by default 256", json_schema_extra=EXT
    )
    dt_rank: PositiveInt | None = Field(
        None,
        description="rank of the projection of time steps (mamba1); by default ceil(d_model / 16)",
        json_schema_extra=EXT,
    )
    conv_bias: bool = Field(True, description="bias of the short convolution", json_schema_extra=EXT)
    bias: bool = Field(False, description="bias of the projections in and out", json_schema_extra=EXT)
    inner_norm: bool = Field(False, description="Jamba's norms on dt, B and C (mamba1)", json_schema_extra=EXT)


@block
class Block(Plain):
    """`mixer: {type: mamba, mamba: {...}}`"""

    type: Literal["mamba"] = Field(description="a selective state space")
    mamba: Mamba = Field(Mamba(), description="its options")

    keeps: ClassVar[tuple[str, ...]] = ("ssm_state",)

    def breaches(self, spec: Any) -> Iterator[Breach]:
        own = self.mamba
        other = {"mamba1": ("head_dim", "n_groups", "chunk_size"), "mamba2": ("dt_rank", "inner_norm")}
        for key in other[own.variant]:
            if getattr(own, key):
                yield Breach(("mamba", key), f"{own.variant} has no {key}", "delete it, or change variant", key=True)
        if own.variant == "mamba2":
            yield from self._heads(own.expand * spec.model.d_model)

    def _heads(self, d_inner: int) -> Iterator[Breach]:
        head_dim, n_groups = self.mamba.head_dim or 64, self.mamba.n_groups or 1
        if d_inner % head_dim:
            what = f"expand * d_model = {d_inner} is not a multiple of head_dim = {head_dim}"
            yield Breach(("mamba", "head_dim"), what, "set head_dim to a divisor")
        elif d_inner // head_dim % n_groups:
            what = f"{d_inner // head_dim} heads do not split into n_groups = {n_groups}"
            yield Breach(("mamba", "n_groups"), what, "set n_groups to a divisor of the heads")

    def completed(self, dims: Dims) -> "Block":
        own = self.mamba
        if own.variant == "mamba1":
            return replace(self, mamba=replace(own, dt_rank=own.dt_rank or math.ceil(dims.d_model / 16)))
        sizes = {"head_dim": own.head_dim or 64, "n_groups": own.n_groups or 1, "chunk_size": own.chunk_size or 256}
        return replace(self, mamba=replace(own, **sizes))

    def shrunk(self, dims: Dims, small: Dims) -> "Block":
        own = replace(self.mamba, d_state=min(self.mamba.d_state, 8), dt_rank=None)
        if own.variant == "mamba2":
            channels, groups = own.expand * small.d_model, min(own.n_groups, 2)
            fitting = ((g, p) for g in (groups, 1) for p in (8, 4, 2, 1) if channels % (g * p) == 0)
            n_groups, head_dim = next(fitting)
            own = replace(own, head_dim=head_dim, n_groups=n_groups, chunk_size=min(own.chunk_size, 8))
        return replace(self, mamba=own).completed(small)

    def runtime(self, dims: Dims) -> dict:
        names = ["d_state", "d_conv", "expand", "conv_bias", "bias"]
        names += ["dt_rank", "inner_norm"] if self.mamba.variant == "mamba1" else ["head_dim", "n_groups", "chunk_size"]
        return {"type": self.mamba.variant} | {name: getattr(self.mamba, name) for name in names}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        return (_mamba1_tensors if self.mamba.variant == "mamba1" else _mamba2_tensors)(self.mamba, dims.d_model)

    def flops(self, dims: Dims, length: int) -> int:
        """2 (weights of the projections) + 2 K (channels of the convolution) + the recurrence, whatever `length`.

        The recurrence is counted as it is written, one token after the other, each product and each sum once: of Mamba
        6 C N + 2 C (for each state step A, decay h, input B, their sum, C h, and its sum; for each channel step x and
        D x), of Mamba-2, where a head shares its decay, 5 C N + 2 C + H. A scan in chunks trades some of it for matrix
        products. Exponentials and gates are not counted.
        """
        shapes, own = self.tensors(dims), self.mamba
        projections = sum(s[0] * s[1] for name, s in shapes.items() if name.endswith("_proj.weight"))
        convolution = 2 * own.d_conv * shapes["conv1d.weight"][0]
        channels = own.expand * dims.d_model
        if own.variant == "mamba1":
            recurrence = 6 * channels * own.d_state + 2 * channels
        else:
            recurrence = 5 * channels * own.d_state + 2 * channels + channels // own.head_dim
        return 2 * projections + convolution + recurrence

    def state_bytes(self, dims: Dims) -> int:
        """C N states in float32, and the last K - 1 inputs of the convolution in the model's dtype."""
        states = self.mamba.expand * dims.d_model * self.mamba.d_state
        tail = self.tensors(dims)["conv1d.weight"][0] * (self.mamba.d_conv - 1)
        return 4 * states + dims.dtype_bytes * tail


def _mamba1_tensors(own: Mamba, d: int) -> dict[str, Shape]:
    c, n, r = own.expand * d, own.d_state, own.dt_rank
    shapes: dict[str, Shape] = {"A_log": (c, n), "D": (c,)} | _shared_tensors(own, d, 2 * c, c)
    shapes |= {"x_proj.weight": (r + 2 * n, c), "dt_proj.weight": (c, r), "dt_proj.bias": (c,)}
    norms = {"dt_norm.weight": (r,), "b_norm.weight": (n,), "c_norm.weight": (n,)}
    return shapes | (norms if own.inner_norm else {})


def _mamba2_tensors(own: Mamba, d: int) -> dict[str, Shape]:
    c = own.expand * d
    heads, convolved = c // own.head_dim, c + 2 * own.n_groups * own.d_state
    shapes: dict[str, Shape] = {"dt_bias": (heads,), "A_log": (heads,), "D": (heads,), "norm.weight": (c,)}
    return shapes | _shared_tensors(own, d, c + convolved + heads, convolved)


def _shared_tensors(own: Mamba, d: int, projected: int, convolved: int) -> dict[str, Shape]:
    """The input projection, the convolution and the output projection, with their biases."""
    c = own.expand * d
    shapes: dict[str, Shape] = {
        "in_proj.weight": (projected, d),
        "conv1d.weight": (convolved, 1, own.d_conv),
        "out_proj.weight": (d, c),
    }
    if own.conv_bias:
        shapes["conv1d.bias"] = (convolved,)
    if own.bias:
        shapes |= {"in_proj.bias": (projected,), "out_proj.bias": (d,)}
    return shapes

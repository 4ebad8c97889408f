"""`residual`: how the branches of a layer join the residual stream, or several streams.

n = expand streams of width D = d_model.
"""

from typing import Literal

from pydantic import Field

from eulerstack.language.block import Dims, NonNegativeInt, PositiveFloat, PositiveInt, Shape, block


@block
class Hyper:
    """Hyper-connections: several residual streams and their mixing."""

    expand: PositiveInt = Field(description="number of residual streams")
    mixing: Literal["birkhoff", "unconstrained", "learned_lowrank"] = Field(
        "birkhoff", description="how streams are mixed beside each branch"
    )
    sinkhorn_iters: NonNegativeInt = Field(3, description="steps towards a doubly stochastic mixing (birkhoff)")

    @property
    def rank(self) -> int:
        """Of the mixing beside the identity (learned_lowrank)."""
        return max(1, self.expand // 2)

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        """Every parameter of the connection of one branch by its name, with its shape."""
        n, d = self.expand, dims.d_model
        if self.mixing == "birkhoff":
            return {"weight": (n * (n + 2), n * d), "bias": (n * (n + 2),), "scale": (3,)}
        width = 2 + (n if self.mixing == "unconstrained" else self.rank)
        right = {"right": (self.rank, n)} if self.mixing == "learned_lowrank" else {}
        return {"weight": (width, d), "bias": (n, width), "scale": (3,)} | right

    def flops(self, dims: Dims) -> int:
        """FLOPs of one token and one branch: the products that make the weights, n D multiply-adds to read the streams
        as one, and n n D to mix them."""
        n, d = self.expand, dims.d_model
        rows, features = self.tensors(dims)["weight"]
        made = rows * features * (1 if self.mixing == "birkhoff" else n)
        low = n * self.rank * n if self.mixing == "learned_lowrank" else 0
        return 2 * (made + low + n * d + n * n * d)


@block
class Residual:
    """How branches join the residual stream."""

    type: Literal["sequential", "parallel", "hyper_connection"] = Field(
        "sequential", description="how mixer and FFN follow each other and join the stream"
    )
    scaling: PositiveFloat = Field(1.0, description="factor on what every branch adds")
    hyper: Hyper | None = Field(None, description="several residual streams (hyper_connection, which needs it)")

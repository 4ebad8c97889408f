"""`shape_change`: a layer whose branches work at another width than the residual stream.

D = d_model, E = d_out; `in` leads from D to E before each branch, `out` back to D after it.
"""

import math
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field

from eulerstack.language.block import Dims, PositiveInt, Shape, block

TAPS = 3  # of the convolution


@block
class ShapeChange:
    """An inner width other than d_model."""

    d_out: PositiveInt = Field(description="width inside the layer")
    projection: Literal["linear", "conv1d", "mlp"] = Field(
        "linear", description="causal maps from d_model to d_out and back"
    )

    def shrunk(self, dims: Dims, small: Dims) -> Self:
        """The same ratio to d_model in steps of 8, and never none where there was one."""
        size = max(8, 8 * round(small.d_model * self.d_out / dims.d_model / 8))
        if size == small.d_model and self.d_out != dims.d_model:
            size += 8 if self.d_out > dims.d_model else -8
        return replace(self, d_out=size)

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        """Every parameter of one pair, `in.<name>` and `out.<name>`, with its shape; there are no biases."""
        ways = {"in": (dims.d_model, self.d_out), "out": (self.d_out, dims.d_model)}
        return {f"{way}.{name}": shape for way, ends in ways.items() for name, shape in self._one(*ends).items()}

    def _one(self, d_in: int, d_out: int) -> dict[str, Shape]:
        if self.projection == "linear":
            return {"proj.weight": (d_out, d_in)}
        if self.projection == "conv1d":
            return {"conv.weight": (d_out, d_in, TAPS)}
        wide = max(d_in, d_out)
        return {"up.weight": (wide, d_in), "down.weight": (d_out, wide)}

    def flops(self, dims: Dims) -> int:
        """FLOPs of one token through one pair: every weight is multiplied once."""
        return 2 * sum(math.prod(shape) for shape in self.tensors(dims).values())

    def state_bytes(self, dims: Dims) -> int:
        """Bytes that one pair keeps of a sequence: the last inputs of its convolutions, in the model's dtype."""
        return (TAPS - 1) * (dims.d_model + self.d_out) * dims.dtype_bytes if self.projection == "conv1d" else 0

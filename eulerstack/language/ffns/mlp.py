"""The `mlp` channel mixer: down(act(up(x)))."""

from typing import Literal

from pydantic import Field

from eulerstack.language.block import Dims, Plain, Shape, block


@block
class Block(Plain):
    """`ffn: {type: mlp, ...}`"""

    type: Literal["mlp"] = Field(description="down(act(up(x)))")
    activation: Literal["gelu", "gelu_tanh", "relu", "relu2"] = Field(
        "gelu", description="activation between the two projections"
    )
    bias: bool = Field(False, description="bias on every projection")

    def runtime(self, dims: Dims) -> dict:
        return {"type": "mlp", "d_ff": dims.d_ff, "activation": self.activation, "bias": self.bias}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        return tensors(dims.d_model, dims.d_ff, self.bias)

    def flops(self, dims: Dims, length: int) -> int:
        return 2 * dims.d_model * dims.d_ff * 2


def tensors(d_model: int, d_ff: int, bias: bool) -> dict[str, Shape]:
    """The parameters of one MLP of width `d_ff`."""
    out = {"up_proj": (d_ff, d_model), "down_proj": (d_model, d_ff)}
    weights = {f"{name}.weight": shape for name, shape in out.items()}
    return weights | ({f"{name}.bias": shape[:1] for name, shape in out.items()} if bias else {})

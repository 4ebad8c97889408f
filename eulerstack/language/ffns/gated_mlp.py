"""The `gated_mlp` channel mixer: down(act(gate(x)) * up(x)) (Shazeer 2020)."""

from typing import Literal

from pydantic import Field

from eulerstack.language.block import Dims, Plain, Shape, block


@block
class Block(Plain):
    """`ffn: {type: gated_mlp, ...}`"""

    type: Literal["gated_mlp"] = Field(description="down(act(gate(x)) * up(x))")
    activation: Literal["swiglu", "geglu", "swiglu_clamped", "gelu", "gelu_tanh", "relu", "relu2"] = Field(
        "swiglu", description="activation of the gate"
    )
    bias: bool = Field(False, description="bias on every projection")

    def runtime(self, dims: Dims) -> dict:
        return {"type": "gated_mlp", "d_ff": dims.d_ff, "activation": self.activation, "bias": self.bias}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        return tensors(dims.d_model, dims.d_ff, self.bias)

    def flops(self, dims: Dims, length: int) -> int:
        return 2 * dims.d_model * dims.d_ff * 3


def tensors(d_model: int, d_ff: int, bias: bool) -> dict[str, Shape]:
    """The parameters of one gated MLP of width `d_ff`."""
    out = {"gate_proj": (d_ff, d_model), "up_proj": (d_ff, d_model), "down_proj": (d_model, d_ff)}
    weights = {f"{name}.weight": shape for name, shape in out.items()}
    return weights | ({f"{name}.bias": shape[:1] for name, shape in out.items()} if bias else {})

"""The `gated_mlp` channel mixer: down(act(gate(x)) * up(x)) (Shazeer 2020)."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from eulerstack.language.block import Breach, Dims, Shape, block


@block
class Block:
    """`ffn: {type: gated_mlp, ...}`"""

    type: Literal["gated_mlp"]
    activation: Literal["swiglu", "geglu", "gelu", "gelu_tanh", "relu", "relu2"] = Field(
        "swiglu", description="of the gate"
    )
    bias: bool = Field(False, description="bias on every projection")

    unbuilt: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def breaches(self, spec: Any) -> Iterator[Breach]:
        yield from ()

    def completed(self, dims: Dims) -> "Block":
        return self

    def shrunk(self, dims: Dims, small: Dims) -> "Block":
        return self

    def runtime(self, dims: Dims) -> dict:
        return {"type": "gated_mlp", "d_ff": dims.d_ff, "activation": self.activation, "bias": self.bias}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        return tensors(dims.d_model, dims.d_ff, self.bias)

    def buffers(self, dims: Dims) -> dict[str, Shape]:
        return {}

    def idle(self, dims: Dims) -> int:
        return 0

    def flops(self, dims: Dims, length: int) -> int:
        return 2 * dims.d_model * dims.d_ff * 3


def tensors(d_model: int, d_ff: int, bias: bool) -> dict[str, Shape]:
    """The parameters of one gated MLP of width `d_ff`."""
    out = {"gate_proj": (d_ff, d_model), "up_proj": (d_ff, d_model), "down_proj": (d_model, d_ff)}
    weights = {f"{name}.weight": shape for name, shape in out.items()}
    return weights | ({f"{name}.bias": shape[:1] for name, shape in out.items()} if bias else {})

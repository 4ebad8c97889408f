"""No channel mixer, and no second norm: a pure mixer layer."""

from typing import Literal

from pydantic import Field

from eulerstack.language.block import EXT, Dims, Plain, Shape, block


@block
class Block(Plain):
    """`ffn: {type: none}`"""

    type: Literal["none"] = Field(
        description="no channel mixer and no second norm: a pure mixer layer", json_schema_extra=EXT
    )

    def runtime(self, dims: Dims) -> dict:
        return {"type": "none"}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        return {}

    def flops(self, dims: Dims, length: int) -> int:
        return 0

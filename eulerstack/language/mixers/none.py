"""No mixer: an FFN-only layer."""

from typing import Literal

from eulerstack.language.block import Dims, Plain, Shape, block


@block
class Block(Plain):
    """`mixer: {type: none}`"""

    type: Literal["none"]

    def runtime(self, dims: Dims) -> dict:
        return {"type": "none"}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        return {}

    def flops(self, dims: Dims, length: int) -> int:
        return 0

"""No channel mixer, and no second norm: a pure mixer layer."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from eulerstack.language.block import Breach, Dims, Shape, block


@block
class Block:
    """`ffn: {type: none}`"""

    type: Literal["none"]

    unbuilt: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def breaches(self, spec: Any) -> Iterator[Breach]:
        yield from ()

    def completed(self, dims: Dims) -> "Block":
        return self

    def shrunk(self, dims: Dims, small: Dims) -> "Block":
        return self

    def runtime(self, dims: Dims) -> dict:
        return {"type": "none"}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        return {}

    def buffers(self, dims: Dims) -> dict[str, Shape]:
        return {}

    def idle(self, dims: Dims) -> int:
        return 0

    def flops(self, dims: Dims, length: int) -> int:
        return 0

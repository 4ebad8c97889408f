"""No mixer: an FFN-only layer."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from eulerstack.language.block import Breach, Dims, Shape, block


@block
class Block:
    """`mixer: {type: none}`"""

    type: Literal["none"]

    keeps: ClassVar[tuple[str, ...]] = ()
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

    def flops(self, dims: Dims, length: int) -> int:
        return 0

    def kv_cache_bytes(self, dims: Dims, length: int) -> int:
        return 0

    def state_bytes(self, dims: Dims) -> int:
        return 0

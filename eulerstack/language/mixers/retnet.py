"""The `retnet` mixer: multi-scale retention (Sun et al. 2023)."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from eulerstack.language.block import Breach, PositiveInt, block


@block
class Retnet:
    """Options of multi-scale retention."""

    chunkwise: bool = Field(True, description="train in chunks")
    chunk_size: PositiveInt = Field(64, description="length of a chunk")
    rope: bool = Field(True, description="xPos-style rotation")


@block
class Block:
    """`mixer: {type: retnet, retnet: {...}}`"""

    type: Literal["retnet"]
    retnet: Retnet = Retnet()

    keeps: ClassVar[tuple[str, ...]] = ("kv_cache",)

    def breaches(self, spec: Any) -> Iterator[Breach]:
        head_dim = spec.model.head_dim or spec.model.d_model // spec.model.n_heads
        if self.retnet.rope and head_dim % 2:
            yield Breach(("retnet", "rope"), f"a head of {head_dim} channels cannot rotate", "make head_dim even")

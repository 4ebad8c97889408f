"""The `hyena` mixer: gated long convolutions with implicit filters (Poli et al. 2023)."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from eulerstack.language.block import Breach, NonNegativeFloat, PositiveInt, block


@block
class Hyena:
    """Options of a Hyena operator."""

    depth: PositiveInt = Field(2, description="order of the operator")
    filter_hidden: PositiveInt = Field(64, description="hidden width of the filter MLP")
    filter_decay: NonNegativeFloat = Field(0.0, description="rate of the exponential window")
    short_conv: PositiveInt = Field(3, description="width of the short convolution")


@block
class Block:
    """`mixer: {type: hyena, hyena: {...}}`"""

    type: Literal["hyena"]
    hyena: Hyena = Hyena()

    keeps: ClassVar[tuple[str, ...]] = ()

    def breaches(self, spec: Any) -> Iterator[Breach]:
        yield from ()

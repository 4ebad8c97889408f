"""The `hyena` mixer: gated long convolutions with implicit filters (Poli et al. 2023).

D = d_model channels, N = depth filters of each, K taps of the short convolution, F width and E features of the filter
MLP.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from eulerstack.language.block import EXT, Dims, NonNegativeFloat, Plain, PositiveInt, Shape, block

FEATURES = 33
SINE_LAYERS = 3


@block
class Hyena:
    """Options of a Hyena operator."""

    depth: PositiveInt = Field(2, description="order: how many long convolutions and gates")
    filter_hidden: PositiveInt = Field(64, description="width of the network that makes the filters")
    filter_decay: NonNegativeFloat = Field(0.0, description="rate of the exponential window on filters; 0 is none")
    short_conv: PositiveInt = Field(3, description="taps of the short convolution", json_schema_extra=EXT)


@block
class Block(Plain):
    """`mixer: {type: hyena, hyena: {...}}`"""

    type: Literal["hyena"] = Field(description="gated long convolutions")
    hyena: Hyena = Field(Hyena(), description="its options")

    # What it holds while it decodes, past inputs of its convolutions, is neither keys and values nor a recurrent state.
    keeps: ClassVar[tuple[str, ...]] = ()

    def shrunk(self, dims: Dims, small: Dims) -> "Block":
        own = self.hyena
        sizes = {"depth": min(own.depth, 3), "filter_hidden": min(own.filter_hidden, 8)}
        return replace(self, hyena=replace(own, **sizes))

    def runtime(self, dims: Dims) -> dict:
        return {"type": "hyena"} | vars(self.hyena)

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        own, d = self.hyena, dims.d_model
        shapes: dict[str, Shape] = {
            "D": (own.depth, d),
            "in_proj.weight": ((own.depth + 1) * d, d),
            "short_conv.weight": ((own.depth + 1) * d, 1, own.short_conv),
            "short_conv.bias": ((own.depth + 1) * d,),
            "out_proj.weight": (d, d),
            "filter.frequency": (own.filter_hidden,),
        }
        return shapes | {f"filter.layers.{name}": shape for name, shape in self._filter_layers(d)}

    def _filter_layers(self, d: int) -> Iterator[tuple[str, Shape]]:
        hidden = self.hyena.filter_hidden
        for layer in range(SINE_LAYERS):
            yield f"{layer}.weight", (hidden, hidden if layer else FEATURES)
            yield f"{layer}.bias", (hidden,)
        yield f"{SINE_LAYERS}.weight", (self.hyena.depth * d, hidden)

    def flops(self, dims: Dims, length: int) -> int:
        """2 (weights of projections and filter MLP) + 2 K (channels of the short convolution) + the long ones by FFT.

        A filter has as many taps as there are tokens, so one of each is made per token. A long convolution is three
        real transforms of 2 `length` points, at 2.5 n log2 n each, the product of two spectra and the skip: together
        15 log2(2 `length`) + 8 a token and channel.
        """
        own, d = self.hyena, dims.d_model
        weights = sum(s[0] * s[1] for name, s in self.tensors(dims).items() if "." in name and len(s) == 2)
        short = (own.depth + 1) * d * own.short_conv
        return 2 * weights + 2 * short + round(own.depth * d * (15 * math.log2(2 * length) + 8))

    def kv_cache_bytes(self, dims: Dims, length: int) -> int:
        """The inputs of the N long convolutions at every token."""
        return length * self.hyena.depth * dims.d_model * dims.dtype_bytes

    def state_bytes(self, dims: Dims) -> int:
        """The last K - 1 inputs of the short convolution."""
        return (self.hyena.depth + 1) * dims.d_model * (self.hyena.short_conv - 1) * dims.dtype_bytes

"""The `retnet` mixer: multi-scale retention (Sun et al. 2023).

H query heads, G key-value heads, E = head_dim features of a key, P = 2 E of a value.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from eulerstack.language.block import Breach, Dims, Plain, PositiveInt, Shape, block

VALUE_EXPAND = 2


@block
class Retnet:
    """Options of multi-scale retention."""

    chunkwise: bool = Field(True, description="compute chunks of tokens at once, instead of a whole call")
    chunk_size: PositiveInt = Field(64, description="tokens of a chunk")
    rope: bool = Field(True, description="queries and keys turn by their place")


@block
class Block(Plain):
    """`mixer: {type: retnet, retnet: {...}}`"""

    type: Literal["retnet"] = Field(description="multi-scale retention")
    retnet: Retnet = Field(Retnet(), description="its options")

    # The language's word for what a retention keeps; its bytes do not grow with the sequence.
    keeps: ClassVar[tuple[str, ...]] = ("kv_cache",)

    def breaches(self, spec: Any) -> Iterator[Breach]:
        if self.retnet.rope:
            yield from _rotation(spec)

    def shrunk(self, dims: Dims, small: Dims) -> "Block":
        return replace(self, retnet=replace(self.retnet, chunk_size=min(self.retnet.chunk_size, 8)))

    def runtime(self, dims: Dims) -> dict:
        sizes = {"heads": dims.n_heads, "kv_heads": dims.n_kv_heads}
        sizes |= {"key_dim": dims.head_dim, "value_dim": VALUE_EXPAND * dims.head_dim}
        return {"type": "retnet"} | sizes | vars(self.retnet)

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        d, keys, values = dims.d_model, dims.head_dim, VALUE_EXPAND * dims.head_dim
        return {
            "q_proj.weight": (dims.n_heads * keys, d),
            "k_proj.weight": (dims.n_kv_heads * keys, d),
            "v_proj.weight": (dims.n_kv_heads * values, d),
            "g_proj.weight": (dims.n_heads * values, d),
            "out_proj.weight": (d, dims.n_heads * values),
        }

    def flops(self, dims: Dims, length: int) -> int:
        """2 (weights) + 5 E P a head, whatever `length`: the recurrence as it is written, each product and each sum
        once (for each number of the state its decay, k v, their sum, and a multiply-add with q)."""
        weights = sum(rows * columns for rows, columns in self.tensors(dims).values())
        return 2 * weights + 5 * self._numbers(dims)

    def state_bytes(self, dims: Dims) -> int:
        """H E P numbers in float32."""
        return 4 * self._numbers(dims)

    def _numbers(self, dims: Dims) -> int:
        return dims.n_heads * VALUE_EXPAND * dims.head_dim**2


def _rotation(spec: Any) -> Iterator[Breach]:
    """What turns: as many channels of a head as `embedding` says, or all where its positions are not rotary."""
    embedding, where = spec.embedding, ("retnet", "rope")
    rotary = embedding.positional == "rope"
    head_dim = spec.model.head_dim or spec.model.d_model // spec.model.n_heads
    rotated = head_dim * (embedding.rope_fraction if rotary else 1)
    if head_dim % 2:
        yield Breach(where, f"a head of {head_dim} channels cannot rotate", "make head_dim even")
    elif int(rotated) % 2 or int(rotated) != round(rotated) or rotated < 2:
        what = f"{embedding.rope_fraction:g} of a head of {head_dim} is {rotated:g} channels, no even number"
        yield Breach(where, what, f"let rope_fraction give an even number over {head_dim}")
    elif rotary and embedding.rope_scaling and embedding.rope_scaling.type == "dynamic":
        what = "dynamic scaling turns old keys anew as a text grows, but a retention has summed them up"
        yield Breach(where, what, "use another rope_scaling, or set rope to false")

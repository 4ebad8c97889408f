"""`memory`: what a layer keeps beside its mixer, written while it reads.

D = d_model, H = params.hidden, P = head_dim; an associative memory has n heads of H / n features.
"""

import math
from dataclasses import replace
from typing import Literal, Protocol, Self

from pydantic import Field

from eulerstack.language.block import Dims, Plain, PositiveFloat, PositiveInt, Shape, block

Shapes = dict[str, Shape]


@block
class MemoryParams:
    """Size of a memory."""

    hidden: PositiveInt = Field(2048, description="its size: features inside, or past tokens held (retrieval)")


@block
class Memory(Plain):
    """A memory beside the mixer."""

    type: Literal["neural_memory", "associative", "retrieval"] = Field(description="what is kept, and how it is read")
    update_at_inference: bool = Field(False, description="written outside of training too")
    params: MemoryParams = Field(MemoryParams(), description="its size")
    inner_lr: PositiveFloat = Field(1e-3, description="step size of its writes (not of retrieval)")
    persistence: Literal["per_query", "session", "persistent"] = Field(
        "session", description="when it goes back to its start"
    )

    def shrunk(self, dims: Dims, small: Dims) -> Self:
        """As wide as the small model at most; of retrieval, fewer tokens than a sequence has."""
        most = small.max_seq_len // 4 if self.type == "retrieval" else small.d_model
        return replace(self, params=MemoryParams(hidden=max(1, min(self.params.hidden, most))))

    def runtime(self, dims: Dims) -> dict:
        """The options under which the modeling code builds it."""
        names = ("update_at_inference", "inner_lr", "persistence")
        return {"type": self.type, "hidden": self.params.hidden} | {name: getattr(self, name) for name in names}

    def tensors(self, dims: Dims) -> Shapes:
        """Every parameter by its name inside the memory, with its shape."""
        return self._kind.tensors(self.params.hidden, dims)

    def buffers(self, dims: Dims) -> Shapes:
        """What is saved of its start beside the weights, float32."""
        if self.persistence != "persistent":
            return {}
        return {f"start_{name}": shape for name, shape in self._kind.starts(self.params.hidden, dims).items()}

    def flops(self, dims: Dims, length: int) -> int:
        """Forward FLOPs of one token in evaluation, two per multiply-add: products with weights, and the memory's own
        as its recurrence is written, each product and each sum once, without gates and the size of a step. A memory
        that is not updated at inference is only read."""
        if self.update_at_inference:
            return self._kind.writing(self.params.hidden, dims, length)
        return self._kind.reading(self.params.hidden, dims) if self._reads else 0

    def kv_cache_bytes(self, dims: Dims, length: int) -> int:
        """Bytes of the tokens that retrieval holds; one that persists holds all it may from the start."""
        if self.type != "retrieval" or not self.update_at_inference:
            return 0
        held = self.params.hidden if self.persistence == "persistent" else min(length, self.params.hidden)
        return held * (dims.dtype_bytes * (dims.head_dim + dims.d_model) + 1)

    def state_bytes(self, dims: Dims) -> int:
        """Bytes of the weights of a memory, float32; of one that learns by gradients with its momentum, the weights
        where its mini-batch began, and the number of tokens in that."""
        if self.type == "retrieval" or not self.update_at_inference:
            return 0
        weights = sum(math.prod(shape) for shape in self._kind.starts(self.params.hidden, dims).values())
        return 4 * weights if self.type == "associative" else 3 * 4 * weights + 8

    @property
    def _reads(self) -> bool:
        """Whether there is anything to read in evaluation without a write."""
        return self.type != "retrieval" or self.persistence == "persistent"

    @property
    def _kind(self) -> "Kind":
        return KINDS[self.type]


class Kind(Protocol):
    """The arithmetic of one type of memory at a size `hidden`."""

    @staticmethod
    def starts(hidden: int, dims: Dims) -> Shapes:
        """What a sequence starts with."""

    @staticmethod
    def tensors(hidden: int, dims: Dims) -> Shapes:
        """Every parameter."""

    @staticmethod
    def reading(hidden: int, dims: Dims) -> int:
        """FLOPs of a token that only reads."""

    @staticmethod
    def writing(hidden: int, dims: Dims, length: int) -> int:
        """FLOPs of a token that is written too."""


class Associative:
    @staticmethod
    def heads(hidden: int, dims: Dims) -> int:
        """As many as divide `hidden` and are not narrower than a head of the model."""
        return next(n for n in range(max(1, hidden // dims.head_dim), 0, -1) if hidden % n == 0)

    @staticmethod
    def starts(hidden: int, dims: Dims) -> Shapes:
        heads = Associative.heads(hidden, dims)
        return {"weight": (heads, hidden // heads, hidden // heads)}

    @staticmethod
    def tensors(hidden: int, dims: Dims) -> Shapes:
        heads, d = Associative.heads(hidden, dims), dims.d_model
        shapes = {f"{name}_proj.weight": (hidden, d) for name in "qkv"} | {"o_proj.weight": (d, hidden)}
        return shapes | {"step_proj.weight": (heads, d), "step_proj.bias": (heads,)} | Associative.starts(hidden, dims)

    @staticmethod
    def reading(hidden: int, dims: Dims) -> int:
        """2 (weights of two projections) + 2 (of S), for S q."""
        return 4 * hidden * dims.d_model + 2 * hidden * (hidden // Associative.heads(hidden, dims))

    @staticmethod
    def writing(hidden: int, dims: Dims, length: int) -> int:
        """2 (weights of the projections) + 6 (of S), for S k, the write and S q, + 2 H, for v - S k times its step."""
        heads = Associative.heads(hidden, dims)
        projections = 2 * (4 * hidden + heads) * dims.d_model
        return projections + 6 * hidden * (hidden // heads) + 2 * hidden


class NeuralMemory:
    @staticmethod
    def starts(hidden: int, dims: Dims) -> Shapes:
        return {"up": (hidden, dims.head_dim), "down": (dims.head_dim, hidden)}

    @staticmethod
    def tensors(hidden: int, dims: Dims) -> Shapes:
        size, d = dims.head_dim, dims.d_model
        shapes = {f"{name}_proj.weight": (size, d) for name in "qkv"} | {"o_proj.weight": (d, size)}
        return shapes | {"gates_proj.weight": (3, d), "gates_proj.bias": (3,)} | NeuralMemory.starts(hidden, dims)

    @staticmethod
    def reading(hidden: int, dims: Dims) -> int:
        """2 (weights of two projections) + 4 H P, for the network."""
        return 4 * dims.head_dim * dims.d_model + 4 * hidden * dims.head_dim

    @staticmethod
    def writing(hidden: int, dims: Dims, length: int) -> int:
        """2 (weights of the projections) + 22 H P + H + 2 P: M(k) and M(q), 8 H P; twice M(k) - v, 2 P; its way back
        through W2, 2 H P + H; the gradient, 2 H P; of each of the 2 H P weights n S - r g and a M + S, 5."""
        size = dims.head_dim
        return 2 * (4 * size + 3) * dims.d_model + 22 * hidden * size + hidden + 2 * size


class Retrieval:
    @staticmethod
    def starts(hidden: int, dims: Dims) -> Shapes:
        return {"keys": (hidden, dims.head_dim), "values": (hidden, dims.d_model), "real": (hidden,)}

    @staticmethod
    def tensors(hidden: int, dims: Dims) -> Shapes:
        size, d = dims.head_dim, dims.d_model
        shapes: Shapes = {"q_proj.weight": (size, d), "k_proj.weight": (size, d), "v_proj.weight": (d, d)}
        return shapes | {"scale": (1,), "gate_proj.weight": (1, d), "gate_proj.bias": (1,), "o_proj.weight": (d, d)}

    @staticmethod
    def reading(hidden: int, dims: Dims) -> int:
        """2 (weights of the projections) + 2 (P + D) of each entry."""
        d = dims.d_model
        return 2 * d * (dims.head_dim + d + 1) + 2 * (dims.head_dim + d) * hidden

    @staticmethod
    def writing(hidden: int, dims: Dims, length: int) -> int:
        """2 (weights of the projections) + 2 (P + D) of each entry in reach."""
        d = dims.d_model
        return 2 * d * (2 * dims.head_dim + 2 * d + 1) + 2 * (dims.head_dim + d) * min(length, hidden)


KINDS: dict[str, Kind] = {"associative": Associative(), "neural_memory": NeuralMemory(), "retrieval": Retrieval()}

"""What a block of the language is: a frozen dataclass that refuses unknown keys and wrong types by itself.

The same classes are the nodes of the IR, with every default written out. A mixer or FFN block also states its own
arithmetic: parameters, FLOPs, cache and state (`Part`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, Self

from pydantic import ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass as pydantic_dataclass

block = pydantic_dataclass(
    frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)
)

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(min_length=1)]
# A key beyond those of EulerStack 0.1.3: `Field(..., json_schema_extra=EXT)`.
EXT = {"ext": True}
# A YAML list becomes a tuple; only the container is lenient, its items stay strict.
AsTuple = Strict(False)


class Breach(NamedTuple):
    """Fields that contradict each other: at which address (of the key itself, or of its value), what, and the fix."""

    where: tuple[str | int, ...]
    what: str
    fix: str
    key: bool = False

    def under(self, *prefix: str | int) -> "Breach":
        return self._replace(where=prefix + self.where)


@dataclass(frozen=True)
class Dims:
    """The numbers of the whole model that a part's arithmetic needs; `dtype_bytes` is per weight and activation."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    max_seq_len: int
    positional: str
    dtype_bytes: int


Shape = tuple[int, ...]


class Part(Protocol):
    """What every mixer, FFN and memory block states about itself."""

    type: str
    # What a mixer keeps between tokens: of "kv_cache" and "ssm_state". A branched mixer says it per instance.
    keeps: ClassVar[tuple[str, ...]]

    def breaches(self, spec: Any) -> Iterator[Breach]:
        """Contradictions between its options, or with the rest of the document (a `schema.Spec`)."""

    def completed(self, dims: Dims) -> "Part":
        """The same block with the defaults that depend on the model written out."""

    def shrunk(self, dims: Dims, small: Dims) -> "Part":
        """The complete block of a model of `dims` as it is in the same topology at the sizes `small`."""

    def runtime(self, dims: Dims) -> dict:
        """The options under which the modeling code builds it: `{"type": <file suffix>, ...}`."""

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        """Every parameter by its name inside the part, with its shape."""

    def buffers(self, dims: Dims) -> dict[str, Shape]:
        """Every stored tensor that is not trained, float32, by its name inside the part (FFN)."""

    def idle(self, dims: Dims) -> int:
        """How many of the parameters one token does not use (FFN)."""

    def flops(self, dims: Dims, length: int) -> int:
        """Forward FLOPs of one token in a context of `length` tokens, two per multiply-add."""

    def kv_cache_bytes(self, dims: Dims, length: int) -> int:
        """Bytes that grow with the sequence, for one sequence of `length` tokens."""

    def state_bytes(self, dims: Dims) -> int:
        """Bytes of recurrent state for one sequence, whatever its length."""


class Plain:
    """The answers of a part with little to say: nothing contradicts, is kept or lies idle."""

    keeps: ClassVar[tuple[str, ...]] = ()

    def breaches(self, spec: Any) -> Iterator[Breach]:
        yield from ()

    def completed(self, dims: Dims) -> Self:
        return self

    def shrunk(self, dims: Dims, small: Dims) -> Self:
        return self

    def buffers(self, dims: Dims) -> dict[str, Shape]:
        return {}

    def idle(self, dims: Dims) -> int:
        return 0

    def kv_cache_bytes(self, dims: Dims, length: int) -> int:
        return 0

    def state_bytes(self, dims: Dims) -> int:
        return 0

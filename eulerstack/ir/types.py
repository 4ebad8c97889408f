"""The intermediate representation: one model, every default written out, every layer spelled out.

Its nodes are the blocks of the language (`eulerstack/language`), so a key exists in one place. `law.py` says what holds
in every IR.
"""

import hashlib
import json
from functools import cache
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, TypeAdapter

from eulerstack.errors import NormalizationError
from eulerstack.language.block import Dims, Name, NonNegativeInt, block
from eulerstack.language.depth_gating import DepthGating
from eulerstack.language.hints import Compatibility, ExecutionMode, TrainingHints, Transition
from eulerstack.language.memory import Memory
from eulerstack.language.residual import Residual
from eulerstack.language.schedule import IntegratorOptions, Merge
from eulerstack.language.schema import Embedding, Head, Model, TokenizerContract
from eulerstack.language.shape_change import ShapeChange
from eulerstack.language.template import Ffn, Mixer, Norm, State

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@block
class Layer:
    """One layer; `index` is its place in `IR.layers`, `entry` the schedule entry it comes from (-1: none)."""

    index: NonNegativeInt
    template: Name
    entry: int
    mixer: Mixer
    ffn: Ffn
    norm: Norm
    residual: Residual
    state: State
    memory: Memory | None = None
    shape_change: ShapeChange | None = None
    depth_gating: DepthGating | None = None


@block
class PlainRun:
    """Layers one after the other, by index."""

    type: Literal["plain"]
    layers: tuple[NonNegativeInt, ...]


@block
class StreamRun:
    """The layers of one of several parallel streams."""

    stream: Name
    layers: tuple[NonNegativeInt, ...]


@block
class ParallelRun:
    """Streams that read the same input, and how they join."""

    type: Literal["parallel"]
    streams: tuple[StreamRun, ...]
    merge: Merge


@block
class IntegratorRun:
    """One layer applied several times with the same weights; `options.body` is its template."""

    type: Literal["integrator"]
    layer: NonNegativeInt
    options: IntegratorOptions


Run = Annotated[PlainRun | ParallelRun | IntegratorRun, Field(discriminator="type")]


def layers_of(run: PlainRun | ParallelRun | IntegratorRun) -> tuple[int, ...]:
    """The indices of all layers of one schedule entry, in the order of `IR.layers`."""
    if run.type == "integrator":
        return (run.layer,)
    if run.type == "plain":
        return run.layers
    return tuple(index for stream in run.streams for index in stream.layers)


@block
class IR:
    """A model. `layers` holds every layer once, those inside streams and integrators too, in the order of `schedule`,
    which has one entry for each of the preset's. `mtp_layer` is the layer of the extra prediction heads.
    """

    name: Name
    schema_version: Literal[1]
    model: Model
    tokenizer_contract: TokenizerContract
    embedding: Embedding
    layers: tuple[Layer, ...]
    schedule: tuple[Run, ...]
    head: Head
    training_hints: TrainingHints
    compatibility: Compatibility
    execution_modes: tuple[ExecutionMode, ...] = ()
    transition: Transition | None = None
    mtp_layer: Layer | None = None
    reserved: dict[str, Any] = Field(default_factory=dict)

    @property
    def dims(self) -> Dims:
        return dims_of(self.model, self.embedding)


def dims_of(model: Model, embedding: Embedding) -> Dims:
    """What a part's arithmetic needs to know of a model whose defaults are written out."""
    names = ("d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "max_seq_len")
    sizes = {name: getattr(model, name) for name in names}
    return Dims(**sizes, positional=embedding.positional, dtype_bytes=DTYPE_BYTES[model.dtype])


@cache
def _adapter() -> TypeAdapter:
    return TypeAdapter(IR)


def to_dict(ir: IR) -> dict:
    """Plain JSON values; keys as the language spells them."""
    return _adapter().dump_python(ir, mode="json", by_alias=True)


def from_dict(data: dict) -> IR:
    """The inverse of `to_dict`. NormalizationError if `data` is no IR of this version."""
    try:
        return _adapter().validate_json(json.dumps(data))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        what, fix = f"no IR of this version: {first['msg']}", "normalize the preset again"
        raise NormalizationError.at("<ir>", what, fix, "docs/language.md", where=where) from None


def to_json(ir: IR) -> str:
    """The canonical text: sorted keys, no spaces, one line."""
    return json.dumps(to_dict(ir), sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"


def from_json(text: str) -> IR:
    """The inverse of `to_json`. NormalizationError if `text` is no IR of this version."""
    try:
        return from_dict(json.loads(text))
    except json.JSONDecodeError as error:
        raise NormalizationError.at(
            "<ir>", f"no JSON: {error.msg}", "normalize the preset again", "docs/language.md", line=error.lineno
        ) from None


def digest(ir: IR) -> str:
    """sha256 of the canonical text, in hex."""
    return hashlib.sha256(to_json(ir).encode()).hexdigest()

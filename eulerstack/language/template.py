"""`layer_templates`: what one layer is made of.

Mixers and FFNs are found by file name: a file in `mixers/` or `ffns/` is a type of the language.
"""

import pkgutil
from collections.abc import Iterable
from functools import cache, reduce
from importlib import import_module
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from eulerstack.language import ffns, mixers
from eulerstack.language.block import NonNegativeInt, PositiveFloat, PositiveInt, block

RESERVED_MIXERS = ("gated_deltanet", "gla", "rwkv7", "lightning")


def _blocks(package) -> dict[str, type]:
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    return {name: import_module(f"{package.__name__}.{name}").Block for name in names}


def _union(blocks: Iterable[type]) -> Any:
    return reduce(or_, blocks)


MIXERS = _blocks(mixers)
FFNS = _blocks(ffns)

Mixer = Annotated[_union(MIXERS.values()), Field(discriminator="type")]
Ffn = Annotated[_union(FFNS.values()), Field(discriminator="type")]


@cache
def unbranched() -> TypeAdapter:
    """The mixers that may stand inside a branched mixer: all but itself."""
    inner = (b for name, b in MIXERS.items() if name != "branched")
    return TypeAdapter(Annotated[_union(inner), Field(discriminator="type")])


@block
class Norm:
    """Which norm, and where it sits."""

    type: Literal["rmsnorm", "layernorm"] = Field("rmsnorm", description="kind of norm")
    position: Literal["pre", "post", "sandwich", "post_branch"] = Field("pre", description="where it sits")
    unit_offset: bool = Field(False, description="weight stored minus one (Gemma)")
    bias: bool | None = Field(None, description="layernorm only, true")


@block
class Hyper:
    """Hyper-connections: several residual streams and their mixing."""

    expand: PositiveInt = Field(description="number of streams")
    mixing: Literal["birkhoff", "unconstrained", "learned_lowrank"] = "birkhoff"
    sinkhorn_iters: NonNegativeInt = 3


@block
class Residual:
    """How branches join the residual stream."""

    type: Literal["sequential", "parallel", "hyper_connection"] = Field("sequential", description="how branches join")
    scaling: PositiveFloat = Field(1.0, description="factor on every branch")
    hyper: Hyper | None = Field(None, description="hyper_connection only")


@block
class State:
    """A declaration that is checked against the mixer."""

    kv_cache: bool | None = Field(None, description="keeps keys and values")
    ssm_state: bool | None = Field(None, description="keeps a recurrent state")


@block
class MemoryParams:
    """Size of a memory."""

    hidden: PositiveInt = 2048


@block
class Memory:
    """A memory beside the mixer."""

    type: Literal["neural_memory", "associative", "retrieval"]
    update_at_inference: bool = False
    params: MemoryParams = MemoryParams()
    inner_lr: PositiveFloat = 1e-3
    persistence: Literal["per_query", "session", "persistent"] = "session"


@block
class ShapeChange:
    """An inner width other than d_model."""

    d_out: PositiveInt
    projection: Literal["linear", "conv1d", "mlp"] = "linear"


@block
class Template:
    """One kind of layer."""

    mixer: Mixer
    ffn: Ffn
    norm: Norm = Norm()
    residual: Residual = Residual()
    state: State | None = None
    memory: Memory | None = None
    shape_change: ShapeChange | None = None


def state_of(mixer: Any) -> State:
    """What a mixer keeps between tokens (language.md, section 5)."""
    return State(kv_cache="kv_cache" in mixer.keeps, ssm_state="ssm_state" in mixer.keeps)

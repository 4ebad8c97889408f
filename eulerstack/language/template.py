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
from eulerstack.language.block import EXT, block
from eulerstack.language.memory import Memory
from eulerstack.language.residual import Residual
from eulerstack.language.shape_change import ShapeChange

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

    type: Literal["rmsnorm", "layernorm"] = Field("rmsnorm", description="with or without taking off the mean")
    position: Literal["pre", "post", "sandwich", "post_branch"] = Field(
        "pre", description="on which side of a mixer or FFN it stands"
    )
    unit_offset: bool = Field(False, description="weight stored minus one (rmsnorm; Gemma)", json_schema_extra=EXT)
    bias: bool | None = Field(None, description="bias of a layernorm; by default true", json_schema_extra=EXT)


@block
class State:
    """A declaration that is checked against the mixer."""

    kv_cache: bool | None = Field(None, description="the mixer keeps keys and values; by default derived")
    ssm_state: bool | None = Field(None, description="the mixer keeps a recurrent state; by default derived")


@block
class Template:
    """One kind of layer."""

    mixer: Mixer = Field(description="what mixes tokens")
    ffn: Ffn = Field(description="what mixes the channels of a token")
    norm: Norm = Field(Norm(), description="which norm, and where it stands")
    residual: Residual = Field(Residual(), description="how branches join the residual stream")
    state: State | None = Field(
        None, description="what the mixer keeps, as a declaration that is checked; by default derived"
    )
    memory: Memory | None = Field(None, description="a memory beside the mixer")
    shape_change: ShapeChange | None = Field(None, description="another width inside the layer")


def state_of(mixer: Any) -> State:
    """What a mixer keeps between tokens (language.md, section 5)."""
    return State(kv_cache="kv_cache" in mixer.keeps, ssm_state="ssm_state" in mixer.keeps)

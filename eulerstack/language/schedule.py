"""`layer_schedule`: which template each layer is, in order."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from eulerstack.language.block import AsTuple, Name, PositiveFloat, PositiveInt, Probability, block


@block
class ResidualOverride:
    scaling: PositiveFloat | None = None


@block
class AttentionOverride:
    """An explicit `window: null` means global, so "as the template says" needs a value of its own."""

    window: PositiveInt | Literal["inherit"] | None = "inherit"
    attn_drop: Probability | None = None


@block
class NormOverride:
    type: Literal["rmsnorm", "layernorm"] | None = None
    position: Literal["pre", "post", "sandwich", "post_branch"] | None = None


@block
class FfnOverride:
    activation: Literal["swiglu", "geglu", "gelu", "gelu_tanh", "relu", "relu2"] | None = None


@block
class Override:
    """The few fields that one entry may change of its template."""

    residual: ResidualOverride | None = None
    attention: AttentionOverride | None = None
    norm: NormOverride | None = None
    ffn: FfnOverride | None = None


@block
class DepthGating:
    """Mixture-of-Depths (Raposo et al. 2024)."""

    enabled: bool = True
    capacity: Annotated[float, Field(gt=0, le=1)] = 0.5
    router: Literal["top_k", "learned_gate"] = "top_k"


@block
class Plain:
    """A template, repeated."""

    template: Name
    repeat: PositiveInt = 1
    override: Override | None = None
    depth_gating: DepthGating | None = None


@block
class BodyItem:
    template: Name
    repeat: PositiveInt = 1


@block
class Stream:
    stream: Name
    body: Annotated[tuple[BodyItem, ...], AsTuple, Field(min_length=1)]


@block
class Merge:
    """How parallel streams join; `from` and `to` name streams."""

    type: Literal["concat", "add", "gated", "cross_attn"] = "concat"
    projection: bool = True
    from_: Name | None = Field(None, alias="from")
    to: Name | None = None


@block
class Parallel:
    """Streams that read the same input."""

    parallel: Annotated[tuple[Stream, ...], AsTuple, Field(min_length=2)]
    merge: Merge = Merge()


@block
class IntegratorOptions:
    """One template with shared weights, applied several times."""

    type: Literal["discrete", "ode_euler", "ode_rk4"]
    steps: PositiveInt
    body: Name
    output: Literal["token", "hidden"] = "token"


@block
class Integrator:
    integrator: IntegratorOptions


def kind_of(entry: Any) -> str:
    """Which of the three kinds an entry is: from a mapping of the file or from a block."""
    has = entry.__contains__ if isinstance(entry, dict) else lambda key: hasattr(entry, key)
    return next((kind for kind in ("parallel", "integrator") if has(kind)), "plain")


Entry = Annotated[
    Annotated[Plain, Tag("plain")] | Annotated[Parallel, Tag("parallel")] | Annotated[Integrator, Tag("integrator")],
    Discriminator(kind_of),
]

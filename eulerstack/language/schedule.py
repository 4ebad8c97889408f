"""`layer_schedule`: which template each layer is, in order."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from eulerstack.language.block import AsTuple, Dims, Name, PositiveFloat, PositiveInt, Probability, Shape, block
from eulerstack.language.depth_gating import DepthGating


@block
class ResidualOverride:
    scaling: PositiveFloat | None = Field(None, description="as in residual; by default the template's")


@block
class AttentionOverride:
    """An explicit `window: null` means global, so "as the template says" needs a value of its own."""

    window: PositiveInt | Literal["inherit"] | None = Field(
        "inherit", description="as in attention; null is global, inherit the template's"
    )
    attn_drop: Probability | None = Field(None, description="as in attention; by default the template's")


@block
class NormOverride:
    type: Literal["rmsnorm", "layernorm"] | None = Field(None, description="as in norm; by default the template's")
    position: Literal["pre", "post", "sandwich", "post_branch"] | None = Field(
        None, description="as in norm; by default the template's"
    )


@block
class FfnOverride:
    activation: Literal["swiglu", "geglu", "swiglu_clamped", "gelu", "gelu_tanh", "relu", "relu2"] | None = Field(
        None, description="one that the template's ffn knows; by default the template's"
    )


@block
class Override:
    """The few fields that one entry may change of its template."""

    residual: ResidualOverride | None = Field(None, description="fields of its residual")
    attention: AttentionOverride | None = Field(None, description="fields of its attention")
    norm: NormOverride | None = Field(None, description="fields of its norm")
    ffn: FfnOverride | None = Field(None, description="fields of its ffn")


@block
class Plain:
    """A template, repeated."""

    template: Name = Field(description="name of a template")
    repeat: PositiveInt = Field(1, description="how many such layers in a row")
    override: Override | None = Field(None, description="what differs from the template")
    depth_gating: DepthGating | None = Field(None, description="lets only some tokens pass (Mixture-of-Depths)")


@block
class BodyItem:
    template: Name = Field(description="name of a template")
    repeat: PositiveInt = Field(1, description="how many such layers in a row")


@block
class Stream:
    stream: Name = Field(description="its name, unique in the entry")
    body: Annotated[tuple[BodyItem, ...], AsTuple, Field(min_length=1)] = Field(description="its layers, in order")


@block
class Merge:
    """How parallel streams join; `from` and `to` name streams."""

    type: Literal["concat", "add", "gated", "cross_attn"] = Field(
        "concat", description="how what the streams add is joined"
    )
    projection: bool = Field(True, description="a learned map of the result; concat needs it")
    from_: Name | None = Field(None, alias="from", description="stream of keys and values (cross_attn, which needs it)")
    to: Name | None = Field(None, description="stream of the queries (cross_attn, which needs it)")

    def tensors(self, dims: Dims, streams: int) -> dict[str, Shape]:
        d, wide = dims.d_model, dims.n_heads * dims.head_dim
        shapes: dict[str, Shape] = {"gate.weight": (streams, d)} if self.type == "gated" else {}
        if self.type == "cross_attn":
            shapes = {f"attention.{name}_proj.weight": (wide, d) for name in "qkv"}
            shapes |= {"attention.o_proj.weight": (d, wide)}
            shapes |= {f"attention.{name}_norm.weight": (d,) for name in ("q", "kv")}
        joined = streams * d if self.type == "concat" else d
        return shapes | ({"proj.weight": (d, joined)} if self.projection else {})

    def flops(self, dims: Dims, streams: int, length: int) -> int:
        products = sum(2 * s[0] * s[1] for s in self.tensors(dims, streams).values() if len(s) == 2)
        return products + (4 * dims.n_heads * dims.head_dim * length if self.type == "cross_attn" else 0)

    def kv_cache_bytes(self, dims: Dims, length: int) -> int:
        return 2 * dims.n_heads * dims.head_dim * length * dims.dtype_bytes if self.type == "cross_attn" else 0


@block
class Parallel:
    """Streams that read the same input."""

    parallel: Annotated[tuple[Stream, ...], AsTuple, Field(min_length=2)] = Field(
        description="streams that read the same input, two or more"
    )
    merge: Merge = Field(Merge(), description="how they join")


@block
class IntegratorOptions:
    """One template with shared weights, applied several times."""

    type: Literal["discrete", "ode_euler", "ode_rk4"] = Field(
        description="composition, or a scheme of order one or four"
    )
    steps: PositiveInt = Field(description="how many")
    body: Name = Field(description="name of a template")
    output: Literal["token", "hidden"] = Field("token", description="normed, or as it is")

    @property
    def evaluations(self) -> int:
        """How often the layer runs in one pass."""
        return self.steps * (4 if self.type == "ode_rk4" else 1)


@block
class Integrator:
    integrator: IntegratorOptions = Field(description="one layer, applied several times")


def kind_of(entry: Any) -> str:
    """Which of the three kinds an entry is: from a mapping of the file or from a block."""
    has = entry.__contains__ if isinstance(entry, dict) else lambda key: hasattr(entry, key)
    return next((kind for kind in ("parallel", "integrator") if has(kind)), "plain")


Entry = Annotated[
    Annotated[Plain, Tag("plain")] | Annotated[Parallel, Tag("parallel")] | Annotated[Integrator, Tag("integrator")],
    Discriminator(kind_of),
]

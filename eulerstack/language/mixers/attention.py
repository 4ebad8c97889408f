"""The `attention` mixer: softmax attention in all the forms of the language."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from eulerstack.language import compression, latent
from eulerstack.language.block import (
    EXT,
    Breach,
    Dims,
    NonNegativeInt,
    Plain,
    PositiveFloat,
    PositiveInt,
    Probability,
    Shape,
    block,
)
from eulerstack.language.compression import Compression


@block
class Sinks:
    """Extra softmax logits per head that absorb mass and carry no value."""

    n_per_head: NonNegativeInt = Field(1, description="sinks of each head; 0 is none")
    learnable: bool = Field(True, description="false keeps their logits at zero")


@block
class Attention:
    """Options of softmax attention."""

    qkv_bias: bool = Field(False, description="bias on q, k and v")
    o_bias: bool = Field(False, description="bias on the output projection", json_schema_extra=EXT)
    attn_drop: Probability = Field(0.0, description="dropout on attention probabilities, training only")
    window: PositiveInt | None = Field(
        None, description="a query sees itself and the window - 1 keys before it; null is global"
    )
    window_mode: Literal["standard", "sliding", "dilated", "nsa"] = Field(
        "standard", description="which keys are in reach; dilated and nsa need a window"
    )
    window_dilation: PositiveInt | None = Field(
        None, description="distance of the keys (dilated and nsa only); by default 1, or 4 for nsa"
    )
    latent_dim: PositiveInt | None = Field(
        None, description="width, below d_model, of one joint latent of keys and values (MLA)"
    )
    q_latent_dim: PositiveInt | None = Field(
        None,
        description="width, below d_model, of a latent of the queries (with latent_dim only)",
        json_schema_extra=EXT,
    )
    qk_rope_dim: Annotated[int, Field(gt=0, multiple_of=2)] | None = Field(
        None, description="numbers of q and k that rotate (with latent_dim only)", json_schema_extra=EXT
    )
    qk_nope_dim: PositiveInt | None = Field(
        None, description="numbers of q and k that never rotate (with latent_dim only)", json_schema_extra=EXT
    )
    v_head_dim: PositiveInt | None = Field(
        None, description="numbers of a value head (with latent_dim only)", json_schema_extra=EXT
    )
    qk_norm: Literal["none", "rmsnorm", "rmsnorm_full"] = Field(
        "none",
        description="norm on q and k before rope: on each head (Qwen3), or over all heads (OLMo2)",
        json_schema_extra=EXT,
    )
    logit_softcap: PositiveFloat | None = Field(
        None, description="tanh cap on attention logits (Gemma 2)", json_schema_extra=EXT
    )
    scale: PositiveFloat | None = Field(
        None, description="factor on attention logits; by default head_dim**-0.5", json_schema_extra=EXT
    )
    compression: Compression | None = Field(None, description="attention over compressed blocks of keys")
    attention_sinks: Sinks | None = Field(
        None, description="extra softmax logits of each head that absorb mass and carry no value"
    )


@block
class Block(Plain):
    """`mixer: {type: attention, attention: {...}}`"""

    type: Literal["attention"] = Field(description="softmax attention")
    attention: Attention = Field(Attention(), description="its options")

    keeps: ClassVar[tuple[str, ...]] = ("kv_cache",)

    def breaches(self, spec: Any) -> Iterator[Breach]:
        for rule in (_window, latent.breaches, compression.breaches):
            yield from (breach.under("attention") for breach in rule(self.attention, spec))

    def completed(self, dims: Dims) -> "Block":
        own = replace(self.attention, **latent.completed(self.attention, dims), **compression.completed(self.attention))
        changes = {
            "window_mode": "standard" if own.window_mode == "sliding" else own.window_mode,
            "window_dilation": own.window_dilation or (4 if own.window_mode == "nsa" else 1),
            "scale": own.scale or latent.query_width(own, dims) ** -0.5,
            "attention_sinks": own.attention_sinks if own.attention_sinks and own.attention_sinks.n_per_head else None,
        }
        return replace(self, attention=replace(own, **changes))

    def shrunk(self, dims: Dims, small: Dims) -> "Block":
        """A window becomes its bit length, which binds within tens of tokens and keeps wider windows wider."""
        own = self.attention
        window = own.window and max(1, min(own.window.bit_length(), small.max_seq_len - 1))
        narrow = replace(own, window=window, window_dilation=min(own.window_dilation, 2), scale=None)
        narrow = replace(narrow, **latent.shrunk(own, dims, small), **compression.shrunk(own, small))
        wide, now = latent.query_width(own, dims), latent.query_width(narrow, small)
        if own.scale != wide**-0.5:
            narrow = replace(narrow, scale=own.scale * (wide / now) ** 0.5)
        return replace(self, attention=narrow).completed(small)

    def runtime(self, dims: Dims) -> dict:
        own = self.attention
        names = ("qkv_bias", "o_bias", "attn_drop", "window", "window_mode", "window_dilation")
        names += ("logit_softcap", "scale")
        options = {"n_heads": dims.n_heads, "n_kv_heads": dims.n_kv_heads, "head_dim": dims.head_dim}
        options |= {name: getattr(own, name) for name in names}
        options["attention_sinks"] = asdict(own.attention_sinks) if own.attention_sinks else None
        if own.compression is not None:
            return options | {"qk_norm": own.qk_norm} | compression.runtime(own.compression)
        if own.latent_dim is None:
            return {"type": "attention"} | options | {"qk_norm": own.qk_norm}
        return options | latent.runtime(own, dims)

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        return _projections(self.attention, dims) | _norms(self.attention, dims) | _sinks(self.attention, dims)

    def flops(self, dims: Dims, length: int) -> int:
        """Projections, and q k^T and p v over every key in reach: no discount for causality (PaLM, appendix B).

        2 (weights of the projections) + 2 n_heads (width of a key + width of a value) keys. A latent is expanded once
        per token, as in a forward pass over the whole sequence.
        """
        weights = sum(s[0] * s[1] for s in _projections(self.attention, dims).values() if len(s) == 2)
        if self.attention.compression is not None:
            return 2 * weights + compression.products(self.attention, dims, length)
        head = latent.query_width(self.attention, dims) + latent.value_width(self.attention, dims)
        return 2 * weights + 2 * dims.n_heads * head * _keys(self.attention, length)

    def kv_cache_bytes(self, dims: Dims, length: int) -> int:
        """Keys and values, or the latent and its rotating key, of the tokens that a later one can still see."""
        own = self.attention
        if own.compression is not None:
            return compression.cache_numbers(own, dims, length) * dims.dtype_bytes
        width = 2 * dims.n_kv_heads * dims.head_dim if own.latent_dim is None else latent.cache_width(own)
        bounded = own.window is not None and own.window_mode != "nsa"
        return width * dims.dtype_bytes * (min(length, own.window - 1) if bounded else length)


def _projections(own: Attention, dims: Dims) -> dict[str, Shape]:
    d, q, kv = dims.d_model, dims.n_heads * dims.head_dim, dims.n_kv_heads * dims.head_dim
    if own.latent_dim is None:
        inputs, expansions = {"q_proj": (q, d), "k_proj": (kv, d), "v_proj": (kv, d)}, {}
        if own.compression is not None:
            inputs, expansions = inputs | compression.biased(own, dims), compression.projections(own, dims)
    else:
        inputs, expansions = latent.inputs(own, dims), latent.expansions(own, dims)
    output = {"o_proj": (d, dims.n_heads * latent.value_width(own, dims))}
    shapes = {f"{name}.weight": shape for name, shape in (inputs | expansions | output).items()}
    biases = inputs if own.qkv_bias else {}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in biases.items()}
    return shapes | ({"o_proj.bias": (d,)} if own.o_bias else {})


def _norms(own: Attention, dims: Dims) -> dict[str, Shape]:
    shapes = {} if own.latent_dim is None else latent.norms(own)
    shapes |= {} if own.compression is None else compression.vectors(own, dims)
    if own.qk_norm == "none":
        return shapes
    full = own.qk_norm == "rmsnorm_full"
    q, k = (heads * dims.head_dim if full else dims.head_dim for heads in (dims.n_heads, dims.n_kv_heads))
    return shapes | {"q_norm.weight": (q,), "k_norm.weight": (k,)}


def _sinks(own: Attention, dims: Dims) -> dict[str, Shape]:
    if own.attention_sinks is None or not own.attention_sinks.learnable:
        return {}
    n = own.attention_sinks.n_per_head
    return {"sinks": (dims.n_heads,) if n == 1 else (dims.n_heads, n)}


def _keys(own: Attention, length: int) -> int:
    """How many keys the last of `length` tokens attends to, itself included."""
    if own.window is None:
        return length
    near = min(length, own.window)
    if own.window_mode == "dilated":
        return -(-near // own.window_dilation)
    far = (length - 1) // (own.window * own.window_dilation) if own.window_mode == "nsa" else 0
    return near + far


def _window(own: Attention, spec: Any) -> Iterator[Breach]:
    sparse = own.window_mode in ("dilated", "nsa")
    if sparse and own.window is None:
        yield Breach(("window_mode",), f"{own.window_mode} needs a window", "add `window:`, or delete window_mode")
    if own.window_dilation is not None and not sparse:
        what = f"window_mode {own.window_mode} has no dilation"
        yield Breach(("window_dilation",), what, "set window_mode to dilated or nsa, or delete it", key=True)

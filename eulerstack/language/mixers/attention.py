"""The `attention` mixer: softmax attention in all the forms of the language."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from eulerstack.language.block import (
    Breach,
    Dims,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Shape,
    block,
)


@block
class Indexer:
    """The small scorer that picks blocks of compressed keys."""

    arch: Literal["relu_mha", "dot_product", "learned_block_sel"]
    n_heads: PositiveInt
    d_per_head: PositiveInt
    dtype: Literal["fp4", "fp8", "bf16", "fp32"] = "bf16"


@block
class Compression:
    """Attention over pooled blocks of keys."""

    type: Literal["csa", "hca", "nsa_learned"]
    m_block: PositiveInt
    pool: Literal["softmax_gated", "mean", "max", "learned_pool"] = "mean"
    indexer: Indexer | None = None
    top_k_blocks: PositiveInt | None = None


@block
class Sinks:
    """Extra softmax logits per head that absorb mass and carry no value."""

    n_per_head: NonNegativeInt = 1
    learnable: bool = True


@block
class Attention:
    """Options of softmax attention."""

    qkv_bias: bool = Field(False, description="bias on q, k, v")
    o_bias: bool = Field(False, description="bias on the output projection")
    attn_drop: Probability = Field(0.0, description="dropout on attention probabilities, training only")
    window: PositiveInt | None = Field(None, description="a query sees itself and the window - 1 keys before it")
    window_mode: Literal["standard", "sliding", "dilated", "nsa"] = Field("standard", description="keys in reach")
    window_dilation: PositiveInt | None = Field(None, description="1, or 4 for nsa")
    latent_dim: PositiveInt | None = Field(None, description="width of the joint KV latent (MLA)")
    q_latent_dim: PositiveInt | None = Field(None, description="DeepSeek's q_lora_rank")
    qk_rope_dim: Annotated[int, Field(gt=0, multiple_of=2)] | None = Field(None, description="qk_rope_head_dim")
    qk_nope_dim: PositiveInt | None = Field(None, description="qk_nope_head_dim")
    v_head_dim: PositiveInt | None = Field(None, description="width of a value head")
    qk_norm: Literal["none", "rmsnorm", "rmsnorm_full"] = Field("none", description="norm on q and k before rope")
    logit_softcap: PositiveFloat | None = Field(None, description="tanh cap on attention logits")
    scale: PositiveFloat | None = Field(None, description="softmax scale, head_dim**-0.5 by default")
    compression: Compression | None = Field(None, description="attention over compressed blocks of keys")
    attention_sinks: Sinks | None = Field(None, description="extra logits that absorb mass")


@block
class Block:
    """`mixer: {type: attention, attention: {...}}`"""

    type: Literal["attention"]
    attention: Attention = Attention()

    keeps: ClassVar[tuple[str, ...]] = ("kv_cache",)

    def breaches(self, spec: Any) -> Iterator[Breach]:
        for rule in (_window, _latent, _compression):
            yield from (breach.under("attention") for breach in rule(self.attention, spec))

    @property
    def unbuilt(self) -> tuple[tuple[str, ...], ...]:
        own, later = self.attention, ("q_latent_dim", "qk_rope_dim", "qk_nope_dim", "v_head_dim", "compression")
        sinks = own.attention_sinks is not None and own.attention_sinks.n_per_head > 0
        keys = [key for key in later if getattr(own, key) is not None] + ["attention_sinks"] * sinks
        return tuple(("attention", key) for key in keys)

    def completed(self, dims: Dims) -> "Block":
        own = self.attention
        return replace(
            self,
            attention=replace(
                own,
                window_mode="standard" if own.window_mode == "sliding" else own.window_mode,
                window_dilation=own.window_dilation or (4 if own.window_mode == "nsa" else 1),
                scale=own.scale or dims.head_dim**-0.5,
            ),
        )

    def shrunk(self, dims: Dims, small: Dims) -> "Block":
        """A window becomes its bit length, which binds within tens of tokens and keeps wider windows wider."""
        own = self.attention
        window = own.window and max(1, min(own.window.bit_length(), small.max_seq_len - 1))
        latent = own.latent_dim and min(max(2, own.latent_dim * small.d_model // dims.d_model), small.d_model - 1)
        plain = own.scale == dims.head_dim**-0.5
        scale = None if plain else own.scale * (dims.head_dim / small.head_dim) ** 0.5
        dilation = min(own.window_dilation, 2)
        small_own = replace(own, window=window, window_dilation=dilation, latent_dim=latent, scale=scale)
        return replace(self, attention=small_own).completed(small)

    def runtime(self, dims: Dims) -> dict:
        own = self.attention
        names = ("qkv_bias", "o_bias", "attn_drop", "window", "window_mode", "window_dilation", "qk_norm")
        names += ("logit_softcap", "scale")
        heads = {"n_heads": dims.n_heads, "n_kv_heads": dims.n_kv_heads, "head_dim": dims.head_dim}
        options = heads | {name: getattr(own, name) for name in names}
        if own.latent_dim is None:
            return {"type": "attention"} | options
        return {"type": "latent_attention"} | options | {"latent_dim": own.latent_dim}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        return _projections(self.attention, dims) | _norms(self.attention, dims)

    def flops(self, dims: Dims, length: int) -> int:
        """Projections, and q k^T and p v over every key in reach: no discount for causality (PaLM, appendix B).

        2 (weights of the projections) + 4 n_heads head_dim keys. A latent is expanded once per token, as in a forward
        pass over the whole sequence.
        """
        weights = sum(s[0] * s[1] for s in _projections(self.attention, dims).values() if len(s) == 2)
        return 2 * weights + 4 * dims.n_heads * dims.head_dim * _keys(self.attention, length)

    def kv_cache_bytes(self, dims: Dims, length: int) -> int:
        """Keys and values, or the latent alone, of the tokens that a later one can still see."""
        own = self.attention
        width = own.latent_dim or 2 * dims.n_kv_heads * dims.head_dim
        bounded = own.window is not None and own.window_mode != "nsa"
        return width * dims.dtype_bytes * (min(length, own.window - 1) if bounded else length)

    def state_bytes(self, dims: Dims) -> int:
        return 0


def _projections(own: Attention, dims: Dims) -> dict[str, Shape]:
    d, q, kv = dims.d_model, dims.n_heads * dims.head_dim, dims.n_kv_heads * dims.head_dim
    if own.latent_dim is None:
        inputs = {"q_proj": (q, d), "k_proj": (kv, d), "v_proj": (kv, d)}
        expansions = {}
    else:
        inputs = {"q_proj": (q, d), "kv_down": (own.latent_dim, d)}
        expansions = {"k_up": (kv, own.latent_dim), "v_up": (kv, own.latent_dim)}
    shapes = {f"{name}.weight": shape for name, shape in (inputs | expansions | {"o_proj": (d, q)}).items()}
    biases = inputs if own.qkv_bias else {}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in biases.items()}
    return shapes | ({"o_proj.bias": (d,)} if own.o_bias else {})


def _norms(own: Attention, dims: Dims) -> dict[str, Shape]:
    latent = {} if own.latent_dim is None else {"kv_norm.weight": (own.latent_dim,)}
    if own.qk_norm == "none":
        return latent
    full = own.qk_norm == "rmsnorm_full"
    q, k = (heads * dims.head_dim if full else dims.head_dim for heads in (dims.n_heads, dims.n_kv_heads))
    return latent | {"q_norm.weight": (q,), "k_norm.weight": (k,)}


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


def _latent(own: Attention, spec: Any) -> Iterator[Breach]:
    if own.latent_dim is None:
        for key in ("q_latent_dim", "qk_rope_dim", "qk_nope_dim", "v_head_dim"):
            if getattr(own, key) is not None:
                yield Breach((key,), f"{key} belongs to latent attention", "add latent_dim, or delete it", key=True)
    elif own.latent_dim >= spec.model.d_model:
        what = f"latent_dim {own.latent_dim} does not compress d_model {spec.model.d_model}"
        yield Breach(("latent_dim",), what, f"use less than {spec.model.d_model}")
    elif own.qk_rope_dim is not None and spec.embedding.positional != "rope":
        what = f"qk_rope_dim rotates, but positional is {spec.embedding.positional}"
        yield Breach(("qk_rope_dim",), what, "set embedding.positional to rope, or delete it", key=True)


def _compression(own: Attention, spec: Any) -> Iterator[Breach]:
    if own.compression is None:
        return
    kind = own.compression.type
    needed = {"csa": ("indexer", "top_k_blocks"), "hca": (), "nsa_learned": ("indexer",)}[kind]
    for key in ("indexer", "top_k_blocks"):
        given = getattr(own.compression, key) is not None
        if key in needed and not given:
            yield Breach(("compression", key), f"{kind} needs {key}", f"add `{key}:`")
        if kind == "hca" and given:
            yield Breach(("compression", key), f"hca is dense and has no {key}", "delete it", key=True)

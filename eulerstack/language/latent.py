"""The arithmetic of latent attention: its two forms, their sizes, and what contradicts them.

Plain: keys and values of head_dim are rebuilt from one joint latent, and rope turns the rebuilt keys.
Decoupled (DeepSeek-V2, section 2.1): a head of q and k is `qk_nope_dim` numbers without a place and `qk_rope_dim` that
rotate; the rotating key is one for all heads, read beside the latent, and a value head has `v_head_dim` numbers.

The options are those of `mixers/attention.py`. H heads, G key-value heads, L latent width.
"""

from collections.abc import Iterator
from typing import Any

from eulerstack.language.block import Breach, Dims, Shape

DECOUPLED = ("q_latent_dim", "qk_rope_dim", "qk_nope_dim", "v_head_dim")


def is_decoupled(own: Any) -> bool:
    """Any one key of the decoupled form asks for the whole of it."""
    return any(getattr(own, key) is not None for key in DECOUPLED)


def completed(own: Any, dims: Dims) -> dict[str, int]:
    """The sizes of the decoupled form, in DeepSeek's proportions where they are not given."""
    if not is_decoupled(own):
        return {}
    sizes = {"qk_nope_dim": own.qk_nope_dim or dims.head_dim, "v_head_dim": own.v_head_dim or dims.head_dim}
    if dims.positional == "rope":
        sizes["qk_rope_dim"] = own.qk_rope_dim or max(4, dims.head_dim // 4 * 2)
    return sizes


def query_width(own: Any, dims: Dims) -> int:
    """Numbers of one head of q and k, of complete options."""
    return own.qk_nope_dim + (own.qk_rope_dim or 0) if is_decoupled(own) else dims.head_dim


def value_width(own: Any, dims: Dims) -> int:
    return own.v_head_dim if is_decoupled(own) else dims.head_dim


def cache_width(own: Any) -> int:
    """Numbers kept of one token: the latent, and the rotating key where it stands apart."""
    return own.latent_dim + (own.qk_rope_dim or 0)


def shrunk(own: Any, dims: Dims, small: Dims) -> dict[str, int]:
    """Latents keep their share of d_model, the parts of a head their share of head_dim, with room to differ."""
    if own.latent_dim is None:
        return {}

    def part(size: int, least: int, step: int = 1) -> int:
        return max(least, size * small.head_dim // dims.head_dim // step * step)

    widths = {"latent_dim": own.latent_dim, "q_latent_dim": own.q_latent_dim}
    sizes = {
        key: min(max(2, width * small.d_model // dims.d_model), small.d_model - 1)
        for key, width in widths.items()
        if width is not None
    }
    if is_decoupled(own):
        sizes |= {"qk_nope_dim": part(own.qk_nope_dim, 2), "v_head_dim": part(own.v_head_dim, 2)}
    if own.qk_rope_dim is not None:
        sizes["qk_rope_dim"] = part(own.qk_rope_dim, 4, 2)
    return sizes


def runtime(own: Any, dims: Dims) -> dict:
    """What the options of plain attention say otherwise, or not at all."""
    if not is_decoupled(own):
        return {"type": "latent_attention", "qk_norm": own.qk_norm, "latent_dim": own.latent_dim}
    sizes = {key: getattr(own, key) for key in ("latent_dim", "q_latent_dim", "qk_nope_dim", "v_head_dim")}
    sizes |= {"qk_rope_dim": own.qk_rope_dim or 0, "head_dim": query_width(own, dims)}
    return {"type": "multihead_latent_attention"} | sizes


def inputs(own: Any, dims: Dims) -> dict[str, Shape]:
    """The projections that read the layer's input, by name."""
    d, q = dims.d_model, dims.n_heads * query_width(own, dims)
    kv_down = {"kv_down": (cache_width(own), d)}
    return ({"q_proj": (q, d)} if own.q_latent_dim is None else {"q_down": (own.q_latent_dim, d)}) | kv_down


def expansions(own: Any, dims: Dims) -> dict[str, Shape]:
    """The projections that read a latent, by name."""
    nope = own.qk_nope_dim or dims.head_dim
    up = {"k_up": (dims.n_kv_heads * nope, own.latent_dim)}
    up |= {"v_up": (dims.n_kv_heads * value_width(own, dims), own.latent_dim)}
    if own.q_latent_dim is not None:
        up["q_up"] = (dims.n_heads * query_width(own, dims), own.q_latent_dim)
    return up


def norms(own: Any) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"kv_norm.weight": (own.latent_dim,)}
    return shapes | ({} if own.q_latent_dim is None else {"q_down_norm.weight": (own.q_latent_dim,)})


def breaches(own: Any, spec: Any) -> Iterator[Breach]:
    if own.latent_dim is None:
        for key in DECOUPLED:
            if getattr(own, key) is not None:
                yield Breach((key,), f"{key} belongs to latent attention", "add latent_dim, or delete it", key=True)
        return
    for key in ("latent_dim", "q_latent_dim"):
        width = getattr(own, key)
        if width is not None and width >= spec.model.d_model:
            what = f"{key} {width} does not compress d_model {spec.model.d_model}"
            yield Breach((key,), what, f"use less than {spec.model.d_model}")
    if own.qk_norm != "none" and is_decoupled(own):
        what = "with q and k in parts the norms stand on the latents, where they do not keep keys from being absorbed"
        yield Breach(("qk_norm",), what, "delete it, or the keys of the decoupled form", key=True)
    yield from _rotation(own, spec.embedding)


def _rotation(own: Any, embedding: Any) -> Iterator[Breach]:
    if own.qk_rope_dim is None:
        return
    if embedding.positional != "rope":
        what = f"qk_rope_dim rotates, but positional is {embedding.positional}"
        yield Breach(("qk_rope_dim",), what, "set embedding.positional to rope, or delete it", key=True)
    elif own.qk_rope_dim < embedding.fewest_turning:
        what = f"dynamic scaling stretches the slower pairs, but only {own.qk_rope_dim} channels turn"
        yield Breach(("qk_rope_dim",), what, "use 4 or more, or linear scaling")

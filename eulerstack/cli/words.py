"""Parts of a layer in a few words: sizes, and every option that is not as usual, as a preset spells them."""

import json
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from eulerstack.language.block import Dims
from eulerstack.language.latent import query_width
from eulerstack.language.where import PLAIN

HEADED = ("attention", "retnet", "ttt_layer")  # mixers whose heads are the model's


def said(value: object) -> str:
    """A value as a preset spells it; numbers with separators."""
    if type(value) is int:
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


def layers(number: int) -> str:
    return f"{number:,} layer{'s' * (number != 1)}"


def percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def quoted(name: str) -> str:
    """A name of a preset on one line, in quotes where it could be taken for more than a name."""
    return name if PLAIN.fullmatch(name) else repr(name)


def short(name: str, width: int = 26) -> str:
    """The same, not wider than a column."""
    name = quoted(name)
    return name if len(name) <= width else name[: width - 3] + "..."


def mixer_name(mixer: Any) -> str:
    """The type of a mixer; of a state space, its variant."""
    return getattr(getattr(mixer, "mamba", None), "variant", mixer.type)


def mixer_words(mixer: Any, dims: Dims) -> list[str]:
    """Heads, then the mixer's options. Of a branched mixer the selector; its branches are mixers themselves."""
    words = []
    if mixer.type in HEADED:
        shared = f", {dims.n_kv_heads:,} of keys and values" if mixer.type != "ttt_layer" else ""
        words.append(f"{dims.n_heads:,} heads of {dims.head_dim:,}{shared}")
    if mixer.type == "mamba":
        words.append(f"{mixer.mamba.expand * dims.d_model:,} channels")
    if mixer.type == "attention" and mixer.attention.window is None and mixer.attention.compression is None:
        words.append("global")
    return words + list(options(mixer, untold(mixer, dims)))


def ffn_words(ffn: Any, dims: Dims) -> list[str]:
    """Its width, or its experts, and the activation."""
    moe = getattr(ffn, "moe", None)
    words = [] if moe else [f"d_ff {dims.d_ff:,}"]
    unused = {"router", *(() if moe and moe.shared_experts else ("shared_d_ff",))}
    return words + list(options(ffn, unused | {"activation"})) + [ffn.activation]


def brief_layer(layer: Any) -> list[str]:
    """Mixer, FFN and what else a layer has, but for what all layers of a model have (residual streams)."""
    words = [mixer_name(layer.mixer)]
    own = getattr(layer.mixer, "attention", None)
    if own is not None:
        words[0] += f" window {own.window:,}" if own.window else ""
        words[0] += f" latent {own.latent_dim:,}" if own.latent_dim else ""
        words[0] += f" {own.compression.type}" if own.compression else ""
    ffn = layer.ffn.type
    if moe := getattr(layer.ffn, "moe", None):
        shared = f" + {moe.shared_experts:,} shared" if moe.shared_experts else ""
        ffn = f"moe {moe.top_k:,} of {moe.experts:,}{shared}"
    words += [ffn, *([layer.memory.type] if layer.memory else [])]
    words += [f"{layer.shape_change.d_out:,} wide inside"] if layer.shape_change else []
    return words + ([f"{percent(layer.depth_gating.capacity)} of the tokens"] if layer.depth_gating else [])


def options(block: Any, untold: Collection[str] = (), prefix: str = "", usual: bool = False) -> Iterator[str]:
    """Every count, and everything else that differs from its default, under its key; blocks inside it too.

    Of a block that is its own default as a whole (`usual`) only the counts are said. A part's type is left out, since
    it stands before its options.
    """
    known = type(block).__pydantic_fields__
    for name in (field.name for field in fields(block) if field.name not in untold):
        value, default = getattr(block, name), known[name].default
        if is_dataclass(value):
            inside = prefix if name == _own_block(block) else f"{prefix}{name}."
            yield from options(value, untold, inside, value == default)
        elif type(value) is int:
            if value:
                yield f"{prefix}{name} {value:,}"
        elif value not in (None, default) and not (usual or isinstance(value, dict) or (name == "type" and not prefix)):
            yield f"{prefix}{name}" if value is True else f"{prefix}{name} {said(value)}"


def _own_block(part: Any) -> str | None:
    """The key under which a part has its options: `attention` of attention, `ttt` of ttt_layer."""
    inner = [field.name for field in fields(part) if is_dataclass(getattr(part, field.name))]
    return inner[0] if len(inner) == 1 and hasattr(part, "tensors") else None


def untold(mixer: Any, dims: Dims) -> set[str]:
    """Options that say nothing here: a default that depends on sizes, one that another leaves without effect."""
    unsaid = {"variant"}
    if mixer.type == "attention":
        own = mixer.attention
        unsaid |= {"window_dilation"} if own.window_mode == "standard" else set()
        unsaid |= {"scale"} if own.scale == query_width(own, dims) ** -0.5 else set()
    if mixer.type == "ttt_layer" and mixer.ttt.inner_model.type == "linear":
        unsaid.add("hidden")
    return unsaid

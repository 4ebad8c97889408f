"""The words of the language, those that a preset says, and which of them are mechanisms. Read by path (runpy).

A word is one of
- `Moe`, a block; that of a kind of mixer or FFN is named by its file, `mixers.mamba`;
- `Moe.router=sigmoid`, one of the values that a key lists, `true` and `false` among them;
- `Moe.shared_experts`, a key that is none, 0 or empty by default, and is something here.
Blocks and keys are found in the types themselves, so that a new one is a word without anybody's help.
"""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from eulerstack.language.locate import bare, fields_of, is_block
from eulerstack.language.schema import Spec

# One activation, whichever kind of FFN it stands in: what is asked is that each occurs somewhere.
SAME = {f"ffns.{kind}.activation": "activation" for kind in ("mlp", "gated_mlp", "moe")}
# And what an override sets is what the template would: that the override itself occurs is asked of its block.
SAME |= {"FfnOverride.activation": "activation", "AttentionOverride.attn_drop": "Attention.attn_drop"}
SAME |= {f"NormOverride.{key}": f"Norm.{key}" for key in ("type", "position")}

# Keys that say how a part is carried out, in which numbers or by which curve. All other words, but for a plain true or
# false, choose another part, another structure, or another place for one.
MANNERS = {
    "activation": "the curve in an FFN",
    "Compression.pool": "how the keys of a block become one",
    "Indexer.arch": "how a block is scored",
    "Hyper.mixing": "which matrices may mix the residual streams",
    "RopeScaling.type": "how the angles of one rotation are stretched",
    "TTT.inner_optimizer": "how a step is taken inside",
    "Mamba.chunk_size": "how many tokens at once",
    "Mamba.dt_rank": "the rank of one projection",
    "TrainingHints.optimizer": "advice to a trainer",
    "InitOptions.scheme": "how first weights are drawn",
    "Model.dtype": "a format",
    "Indexer.dtype": "a format",
    "QuantAwareTraining.dtype": "a format",
    "QuantAwareTraining.dequant_to": "a format",
}


def vocabulary() -> set[str]:
    """Every word of the language."""
    blocks, left = {Spec}, [Spec]
    while left:
        found = {block for field in fields_of(left.pop()).values() for block in _blocks(field.annotation)} - blocks
        blocks |= found
        left += found
    return {word for block in blocks for word in _words(block)}


def said(value: Any) -> Iterator[str]:
    """The words of a checked document, or of any part of it, defaults among them."""
    if isinstance(value, tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from said(item)
    elif is_block(type(value)):
        yield name_of(type(value))
        for key, field in fields_of(type(value)).items():
            inner = getattr(value, f"{key}_" if key == "from" else key)
            yield from said(inner)
            words = {_key(type(value), key)} if inner else set()
            words |= {_key(type(value), key, inner)} if isinstance(inner, str | bool) else set()
            yield from _of_key(type(value), key, field) & words


def is_mechanism(word: str) -> bool:
    """Whether it chooses another computation or structure: blocks, listed values, and keys that are off by default."""
    key, _, value = word.partition("=")
    return value not in ("true", "false") and key not in MANNERS


def name_of(block: type) -> str:
    """The name of a class; of one called Block, that of its file with the folder."""
    return block.__name__ if block.__name__ != "Block" else ".".join(block.__module__.split(".")[-2:])


def _words(block: type) -> Iterator[str]:
    yield name_of(block)
    for key, field in fields_of(block).items():
        yield from _of_key(block, key, field)


def _of_key(block: type, key: str, field: Any) -> set[str]:
    values = set(_listed(field.annotation))
    if values:
        return {_key(block, key, value) for value in values}
    off = not field.is_required() and not field.get_default(call_default_factory=True)
    return {_key(block, key)} if off else set()


def _key(block: type, key: str, value: Any = ...) -> str:
    name = f"{name_of(block)}.{key}"
    name = SAME.get(name, name)
    if value is ...:
        return name
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def _listed(kind: Any) -> Iterator[Any]:
    """The values that a type lists, outside of the blocks in it."""
    if kind is bool:
        yield from (False, True)
    elif get_origin(kind) is Literal:
        yield from get_args(kind)
    elif get_origin(kind) is not tuple and not is_block(kind):
        for part in get_args(kind):
            yield from _listed(part)


def _blocks(kind: Any) -> Iterator[type]:
    """The blocks in a type; an open place is that of a branch, so any mixer."""
    kind = bare(kind)
    if is_block(kind):
        yield kind
    elif get_origin(kind) is not Literal:
        for part in get_args(kind):
            yield from _blocks(part)

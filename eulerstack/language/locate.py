"""From an address that pydantic reports to the block of the language it lies in."""

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Tag
from pydantic.fields import FieldInfo

from eulerstack.language.schema import Spec
from eulerstack.language.template import Mixer
from eulerstack.language.where import Where

UNIONS = (Union, UnionType)


@dataclass(frozen=True)
class Located:
    """An address without pydantic's union tags.

    `owner` is the block that its last key belongs to (None in a list or a map of names), `kind` the type expected
    there (None for a key the block does not know), `field` what the block says about it.
    """

    where: Where
    owner: type | None
    kind: Any
    field: FieldInfo | None


def locate(loc: tuple) -> Located:
    """Walk the schema along the address of a pydantic error."""
    at = Located((), None, Spec, None)
    for step in loc:
        kind = bare(at.kind)
        if get_origin(kind) in UNIONS:
            chosen = _member(kind, step)
            if chosen is None:
                break
            at = Located(at.where, at.owner, chosen, at.field)
        elif kind is None or step == "[key]":
            break
        else:
            at = _enter(at.where, kind, step)
    return at


def fields_of(block: type) -> dict[str, FieldInfo]:
    """The keys of a block as the file spells them."""
    return {field.alias or name: field for name, field in block.__pydantic_fields__.items()}


def is_block(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_fields__")


def is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def members(union: Any) -> list[type]:
    """The blocks that a union offers."""
    return [block for option in get_args(bare(union)) if is_block(block := bare(option))]


def tags_of(block: type) -> tuple[str, ...]:
    """The values of `type` that choose this block."""
    field = block.__pydantic_fields__.get("type")
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()


def choices(kind: Any) -> list[str]:
    """Every word that a type of the schema accepts."""
    if get_origin(kind) is Literal:
        return [str(option) for option in get_args(kind)]
    return [word for part in get_args(kind) for word in choices(part)]


def choices_of(block: type, key: str) -> list[str]:
    """Every word that a key of a block accepts; none if the block has no such key."""
    field = fields_of(block).get(key)
    return choices(field.annotation) if field else []


def bare(kind: Any) -> Any:
    """Without Annotated and without None; a branch, open in the schema, is a mixer."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if kind is Any:
        return bare(Mixer)
    if get_origin(kind) in UNIONS:
        options = [option for option in get_args(kind) if option is not NoneType]
        return bare(options[0]) if len(options) == 1 else kind
    return kind


def _enter(where: Where, kind: Any, step: str | int) -> Located:
    where += (step,)
    if is_block(kind):
        field = fields_of(kind).get(step)
        return Located(where, kind, field and Annotated[field.annotation, field], field)
    items = get_args(kind)
    if get_origin(kind) is dict:
        return Located(where, None, items[1], None)
    if get_origin(kind) is tuple:
        return Located(where, None, items[0] if items[-1] is Ellipsis else items[min(step, len(items) - 1)], None)
    return Located(where, None, None, None)


def _member(union: Any, tag: str) -> type | None:
    for option in get_args(union):
        named = [mark.tag for mark in getattr(option, "__metadata__", ()) if isinstance(mark, Tag)]
        block = bare(option)
        if is_block(block) and (tag in named or tag in tags_of(block) or tag == block.__name__):
            return block
    return None

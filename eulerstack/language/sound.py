"""What is left of a document that is wrong somewhere: enough to hold its sound fields against each other."""

import copy
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import pydantic

from eulerstack.language.schema import Spec
from eulerstack.language.where import Where

# A template of which no rule has anything to say, for a document of which no other template is sound.
NEUTRAL = {"-": {"mixer": {"type": "none"}, "ffn": {"type": "mlp"}}}


@cache
def _spec() -> pydantic.TypeAdapter:
    return pydantic.TypeAdapter(Spec)


def read(tree: Any) -> Spec:
    """The blocks of a tree; pydantic's ValidationError if a field is wrong."""
    return _spec().validate_json(json.dumps(tree))


def sound_part(tree: dict[str, Any], removable: Iterable[Where]) -> Spec | None:
    """The document without the keys that can go, and then without the templates that are still wrong.

    None if that leaves no document.
    """
    tree = _without(tree, removable)
    try:
        return read(tree)
    except pydantic.ValidationError as error:
        wrong = {item["loc"][:2] for item in error.errors(include_url=False, include_context=False)}
    if any(len(loc) < 2 or loc[0] != "layer_templates" for loc in wrong):
        return None
    templates = {name: t for name, t in tree["layer_templates"].items() if ("layer_templates", name) not in wrong}
    try:
        return read(tree | {"layer_templates": templates or NEUTRAL})
    except pydantic.ValidationError:
        return None


def _without(tree: Any, removable: Iterable[Where]) -> Any:
    tree = copy.deepcopy(tree)
    for where in removable:
        holder = tree
        for step in where[:-1]:
            holder = _step(holder, step)
        if where and isinstance(holder, dict):
            holder.pop(where[-1], None)
    return tree


def _step(holder: Any, step: str | int) -> Any:
    try:
        return holder[step]
    except (KeyError, IndexError, TypeError):
        return None

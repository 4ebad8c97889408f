"""Names by which parts of a file speak of each other: templates and streams.

They are looked up in the tree as it is written, because a name can be wrong whatever else is.
"""

from collections.abc import Iterator
from typing import Any

from eulerstack.errors import Problem
from eulerstack.language.block import Breach
from eulerstack.language.sentences import nearest
from eulerstack.language.source import Source
from eulerstack.language.where import Where, dotted

Mention = tuple[Where, Any]


def check_names(source: Source, wrong: set[Where]) -> list[Problem]:
    """Every name that nothing bears, but for those in `wrong` and those whose bearers could not be read."""
    breaches = [*_templates(source), *_streams(source.tree)]
    breaches = [b for b in breaches if b.where not in wrong and b.where not in source.unread]
    return [source.problem("CompatibilityError", b.where, b.what, b.fix) for b in breaches]


def _templates(source: Source) -> Iterator[Breach]:
    known = _mapping(source.tree.get("layer_templates"))
    # A key that is no text, or a merge that is none, may be the template that is missing.
    if not known or any(p.where == dotted(("layer_templates",)) for p in source.problems):
        return
    for where, name in mentions(source.tree):
        if isinstance(name, str) and name not in known:
            yield Breach(where, f"no template {name!r}", f"{nearest(name, list(known))}Templates: {', '.join(known)}")


def mentions(tree: dict[str, Any]) -> Iterator[Mention]:
    """Every place that names a template, with what it says."""
    for i, entry in _entries(tree):
        where: Where = ("layer_schedule", i)
        yield from _named(entry, where, "template")
        yield from _named(_mapping(entry.get("integrator")), (*where, "integrator"), "body")
        for j, stream in enumerate(_list(entry.get("parallel"))):
            for k, item in enumerate(_list(_mapping(stream).get("body"))):
                yield from _named(_mapping(item), (*where, "parallel", j, "body", k), "template")
    mtp = _mapping(_mapping(tree.get("head")).get("mtp"))
    yield from _named(mtp, ("head", "mtp"), "head_template")


def _streams(tree: dict[str, Any]) -> Iterator[Breach]:
    for i, entry in _entries(tree):
        merge = _mapping(entry.get("merge"))
        names = [_mapping(stream).get("stream") for stream in _list(entry.get("parallel"))]
        if merge.get("type") != "cross_attn" or not names or not all(isinstance(name, str) for name in names):
            continue
        for where, name in (*_named(merge, (), "from"), *_named(merge, (), "to")):
            if isinstance(name, str) and name not in names:
                fix = f"{nearest(name, names)}Streams: {', '.join(names)}"
                yield Breach(("layer_schedule", i, "merge", *where), f"no stream {name!r}", fix)


def _entries(tree: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    for i, entry in enumerate(_list(tree.get("layer_schedule"))):
        yield i, _mapping(entry)


def _named(block: dict[str, Any], where: Where, key: str) -> Iterator[Mention]:
    if key in block:
        yield (*where, key), block[key]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

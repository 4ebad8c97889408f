"""YAML text -> a plain tree that remembers the line and column (from 1) of every key and value.

PyYAML splits the text into events; composing and reading scalars is done here, because PyYAML keeps the last of two
equal keys, reads `3e-4` as text and `017` as 15, builds dates, recurses without bound and forgets places.
"""

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eulerstack.errors import Problem
from eulerstack.language.nodes import MAX_DEPTH, Node, Place, compose, parse_error, place_at
from eulerstack.language.scalars import read_scalar, unusable
from eulerstack.language.where import Where, dotted, see

MAX_BYTES = 256 * 1024
MAX_VALUES = 50_000


@dataclass(frozen=True)
class Source:
    """A document as a plain tree, with the place of every key and value; a dict given by a caller has no places.

    `problems` is what is wrong but can be read around; the value at each address in `unread` is a stand-in.
    """

    path: str
    tree: dict[str, Any]
    keys: dict[Where, Place] = field(default_factory=dict)
    values: dict[Where, Place] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    unread: frozenset[Where] = frozenset()

    def place(self, where: Where, key: bool = False) -> Place | None:
        """Of the value (or the key) at `where`; of the nearest enclosing key for what the file does not say."""
        if where in self.values and not key:
            return self.values[where]
        while where and where not in self.keys and where not in self.values:
            where = where[:-1]
        return self.keys.get(where) or self.values.get(where)

    def problem(self, category: str, where: Where, what: str, fix: str, *, key: bool = False) -> Problem:
        line, column = self.place(where, key) or (None, None)
        return Problem(category, self.path, line, column, dotted(where), what, fix, see(where))


def read_source(path: str | os.PathLike) -> Source:
    """Read a preset file; ParseError where it is no YAML document of the language."""
    return parse(_text(Path(path), str(path)), str(path))


def parse(text: str, path: str) -> Source:
    """The tree of YAML text; what can be read around (a duplicate key) is left in `problems`."""
    root = compose(text, path)
    builder = _Builder(path)
    tree = builder.build(root, (), 0)
    if not isinstance(tree, dict):
        raise parse_error(path, root.place, "a preset is a mapping of blocks", "start with `schema_version: 1`")
    return Source(path, tree, builder.keys, builder.values, tuple(builder.problems), frozenset(builder.unread))


def tree_of(data: Any, path: str = "<dict>") -> Source:
    """The same for what `yaml.safe_load` gave: no places, but the same bounds and refusals."""
    builder = _Builder(path)
    tree = builder.copy(data, (), 0)
    if not isinstance(tree, dict):
        raise parse_error(path, None, "a preset is a mapping of blocks", "give the dict that yaml.safe_load returns")
    return Source(path, tree, problems=tuple(builder.problems), unread=frozenset(builder.unread))


def _text(file: Path, path: str) -> str:
    try:
        with file.open("rb") as handle:
            raw = handle.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise parse_error(path, None, "no such file", "see `eulerstack presets list`") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise parse_error(path, None, f"cannot be read: {reason}", "give a readable YAML file") from None
    if len(raw) > MAX_BYTES:
        raise parse_error(path, None, f"larger than {MAX_BYTES // 1024} KiB", "a preset is a page of YAML")
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8")
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise parse_error(path, place_at(before, len(before)), what, "save the file as UTF-8 text") from None


class _Builder:
    """Nodes (or a caller's dict) -> plain tree; collects places and the problems that can be read around."""

    def __init__(self, path: str):
        self.path = path
        self.keys: dict[Where, Place] = {}
        self.values: dict[Where, Place] = {}
        self.problems: list[Problem] = []
        self.unread: set[Where] = set()
        self.count = 0

    def build(self, node: Node, where: Where, depth: int) -> Any:
        self._bound(node.place, depth)
        self.values[where] = node.place
        if node.kind == "list":
            return [self.build(item, (*where, i), depth + 1) for i, item in enumerate(node.content)]
        if node.kind == "scalar":
            return self._scalar(node, where)
        tree: dict[str, Any] = {}
        for key, value in self._pairs(node, where):
            self.keys[(*where, key.content)] = key.place
            tree[key.content] = self.build(value, (*where, key.content), depth + 1)
        return tree

    def _scalar(self, node: Node, where: Where) -> Any:
        value, trouble = read_scalar(node.content) if node.plain else (node.content, unusable(node.content))
        if trouble:
            value = "unread"
            self.unread.add(where)
            self._add(node.place, where, *trouble)
        return value

    def _pairs(self, node: Node, where: Where) -> Iterator[tuple[Node, Node]]:
        """Every key once: duplicates and keys that are no text are reported, `<<` is expanded, own keys win."""
        seen: dict[str, Node] = {}
        merged: list[Node] = []
        for key, value in node.content:
            if _is_merge(key):
                merged += self._bases(value, where)
            elif trouble := _no_key(key):
                self._add(key.place, where, *trouble)
            elif first := seen.get(key.content):
                again = f"key {key.content!r} again; it is already on line {first.place.line}"
                self._add(key.place, (*where, key.content), again, "keep one of the two")
            else:
                seen[key.content] = key
                yield key, value
        for key, value in (pair for base in merged for pair in self._inherited(base, where, 0)):
            if key.content not in seen:
                seen[key.content] = key
                yield key, value

    def _inherited(self, base: Node, where: Where, depth: int) -> Iterator[tuple[Node, Node]]:
        """What a merged mapping brings: its own pairs before those that it merges itself."""
        self._bound(base.place, depth)
        yield from ((key, value) for key, value in base.content if not _is_merge(key) and not _no_key(key))
        for value in (value for key, value in base.content if _is_merge(key)):
            for deeper in self._bases(value, where):
                yield from self._inherited(deeper, where, depth + 1)

    def _bases(self, value: Node, where: Where) -> list[Node]:
        bases = value.content if value.kind == "list" else [value]
        if all(base.kind == "mapping" for base in bases):
            return bases
        self._add(value.place, where, "`<<` merges mappings only", "give it an alias of a mapping")
        return []

    def copy(self, value: Any, where: Where, depth: int) -> Any:
        self._bound(None, depth)
        if isinstance(value, dict):
            self._refuse_keys(value, where)
            return {k: self.copy(v, (*where, k), depth + 1) for k, v in value.items() if _text_key(k)}
        if isinstance(value, list | tuple):
            return [self.copy(item, (*where, i), depth + 1) for i, item in enumerate(value)]
        if value is None or type(value) in (bool, int, float, str):
            trouble = unusable(value)
        else:
            trouble = (f"a {type(value).__name__} is no value here", "use text, numbers, true, false or null")
        if trouble:
            self.unread.add(where)
            self._add(None, where, *trouble)
            return "unread"
        return value

    def _refuse_keys(self, mapping: dict, where: Where) -> None:
        for key in mapping:
            if not _text_key(key):
                what = f"key {key!r:.40} is {'unusable' if isinstance(key, str) else 'no text'}"
                self._add(None, where, what, "quote it in the YAML")

    def _bound(self, place: Place | None, depth: int) -> None:
        self.count += 1
        if depth > MAX_DEPTH:
            raise parse_error(self.path, place, f"nested more than {MAX_DEPTH} deep", "flatten this")
        if self.count > MAX_VALUES:
            raise parse_error(self.path, place, f"aliases expand to more than {MAX_VALUES} values", "use fewer aliases")

    def _add(self, place: Place | None, where: Where, what: str, fix: str) -> None:
        line, column = place or (None, None)
        self.problems.append(Problem("ParseError", self.path, line, column, dotted(where), what, fix, see(None)))


def _text_key(key: Any) -> bool:
    return isinstance(key, str) and not unusable(key)


def _is_merge(key: Node) -> bool:
    return key.kind == "scalar" and key.plain and key.content == "<<"


def _no_key(key: Node) -> tuple[str, str] | None:
    """Why a node cannot be a key: what and fix."""
    if key.kind != "scalar":
        return f"a {key.kind} cannot be a key", "a key is plain text"
    value, trouble = read_scalar(key.content) if key.plain else (key.content, unusable(key.content))
    if trouble:
        return trouble
    if not isinstance(value, str):
        return f"key `{key.content}` is read as {value!r}, not as text", f"write it in quotes: '{key.content}'"
    return None

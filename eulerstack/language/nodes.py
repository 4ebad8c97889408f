"""YAML text -> nodes with their places: what PyYAML's composer does, but with bounds."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from eulerstack.errors import ParseError
from eulerstack.language.where import Where, see

MAX_DEPTH = 64
FAST = getattr(yaml, "CSafeLoader", None)  # PyYAML may be built without libyaml
OWN = re.compile(r"[^\n ->@-~]|[|>][-+0-9]*#")  # all but plain ASCII, `?`, and a comment right at a block scalar's sign


class Place(NamedTuple):
    """Line and column, both from 1."""

    line: int
    column: int


@dataclass
class Node:
    """One YAML node: `content` is the text of a scalar, a list of nodes, or a list of (key, value) nodes."""

    kind: str
    content: Any
    place: Place
    plain: bool = False
    whole: bool = False


def compose(text: str, path: str) -> Node:
    """The single document of a text; ParseError where it is not YAML, or more or less than one document.

    libyaml is twenty times as fast. It reads tabs, question marks, marks of byte order and `|#` otherwise than PyYAML,
    places empty values elsewhere and has other words for what is wrong, so it reads only plain text, and whatever it
    stumbles on is read again.
    """
    if FAST is not None and not OWN.search(text):
        with suppress(ParseError):
            return _Composer(text, path, FAST).document()
    return _Composer(text, path, yaml.SafeLoader).document()


def parse_error(path: str, place: Place | None, what: str, fix: str, about: Where | None = None) -> ParseError:
    line, column = place or (None, None)
    return ParseError.at(path, what, fix, see(about), line=line, column=column)


def place_at(text: str, index: int) -> Place:
    return Place(text.count("\n", 0, index) + 1, index - (text.rfind("\n", 0, index) + 1) + 1)


class _Composer:
    """Events -> nodes, with bounded depth. An alias is the very node of its anchor."""

    def __init__(self, text: str, path: str, loader: type):
        self.text, self.path, self.loader = text, path, loader
        self.anchors: dict[str, Node] = {}
        self.events = self._events()

    def document(self) -> Node:
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            raise parse_error(self.path, Place(1, 1), "the file is empty", "start with `schema_version: 1`")
        root = self._node(next(self.events), 0)
        next(self.events)
        if not isinstance(event := next(self.events), yaml.StreamEndEvent):
            raise self._at(event, "a second document starts here", "keep one document per file")
        return root

    def _events(self) -> Iterator[yaml.Event]:
        try:
            events = yaml.parse(self.text, Loader=self.loader)
            next(events)
            for event in events:
                if self.loader is FAST and isinstance(event, yaml.ScalarEvent) and not event.value:
                    raise self._at(event, "an empty value", "read it again")
                yield event
        except yaml.reader.ReaderError as error:
            place = place_at(self.text, error.position)
            what = f"character U+{error.character:04X} cannot stand in YAML"
            raise parse_error(self.path, place, what, "is this a text file? Delete the character") from None
        except yaml.MarkedYAMLError as error:
            raise self._syntax(error) from None
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            raise parse_error(self.path, None, f"not YAML: {error}", "correct the YAML") from None

    def _syntax(self, error: yaml.MarkedYAMLError) -> ParseError:
        mark = error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1)
        lines = self.text.split("\n")
        line = lines[min(mark.line, len(lines) - 1)]
        if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in (error.problem or ""):
            return parse_error(self.path, place, "a tab where YAML wants spaces", "indent with spaces")
        if "${" in line[mark.column - 1 : mark.column + 1]:  # YAML ends the text at a brace of a flow collection
            what, fix = "an expression without quotes inside {...} or [...]", 'write it in quotes: "${...}"'
            return parse_error(self.path, place, what, fix, ("let",))
        context = f" {error.context}" if error.context else ""
        what = f"not YAML: {error.problem}{context}"
        return parse_error(self.path, place, what, "correct the indentation, quotes or brackets")

    def _at(self, event: yaml.Event, what: str, fix: str) -> ParseError:
        return parse_error(self.path, _start(event), what, fix)

    def _node(self, event: yaml.Event, depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if depth > MAX_DEPTH:
            raise self._at(event, f"nested more than {MAX_DEPTH} deep", "flatten this")
        if event.tag is not None:
            raise self._at(event, f"tag {event.tag!r} is not part of the language", "delete the tag")
        node = Node("scalar", None, _start(event))
        if event.anchor is not None:
            if event.anchor in self.anchors:
                raise self._at(event, f"anchor &{event.anchor} is defined twice", "give each anchor a name of its own")
            self.anchors[event.anchor] = node
        self._fill(node, event, depth)
        node.whole = True
        return node

    def _fill(self, node: Node, event: yaml.Event, depth: int) -> None:
        if isinstance(event, yaml.ScalarEvent):
            node.content, node.plain = event.value, event.implicit[0]
            return
        node.kind = "list" if isinstance(event, yaml.SequenceStartEvent) else "mapping"
        items = []
        while not isinstance(event := next(self.events), yaml.CollectionEndEvent):
            item = self._node(event, depth + 1)
            items.append(item if node.kind == "list" else (item, self._node(next(self.events), depth + 1)))
        node.content = items

    def _alias(self, event: yaml.AliasEvent) -> Node:
        node = self.anchors.get(event.anchor)
        if node is None:
            raise self._at(event, f"alias *{event.anchor} has no anchor before it", f"define &{event.anchor} first")
        if not node.whole:
            raise self._at(event, f"alias *{event.anchor} inside its own anchor", "a preset cannot contain itself")
        return node


def _start(event: yaml.Event) -> Place:
    return Place(event.start_mark.line + 1, event.start_mark.column + 1)

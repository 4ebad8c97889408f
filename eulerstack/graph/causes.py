"""Which inputs of a step differ between two keys, from what to what, in words."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from eulerstack.graph.store import Store

ABSENT = object()
DIGEST = re.compile(r"[0-9a-f]{64}")
SHOWN = 12  # of a digest
WIDTH = 60  # of a value
MOST = 12  # changes shown inside of one input
WORDS = {"code": "code ", "modeling": "modeling file ", "script": "script ", "libraries": "library "}

Place = tuple[str | int, ...]
Pair = tuple[Place, Any, Any]


@dataclass(frozen=True)
class Cause:
    """One input that changed; `inside` says what changed in it, where both contents are known."""

    place: str
    old: str
    new: str
    inside: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        return [f"{self.place}: {self.old} -> {self.new}", *(f"    {line}" for line in self.inside)]


def causes(old: dict, new: dict, content: Callable[[str], Any]) -> list[Cause]:
    """The inputs that differ. `content` gives the JSON of a file by its sha256; ABSENT where that is not known."""
    found = []
    for place, before, after in pairs(old, new):
        inside = ()
        if _is_digest(before) and _is_digest(after):
            both = content(before), content(after)
            inside = tuple(inside_of(*both)) if ABSENT not in both else ()
        found.append(Cause(_input(place), said(before), said(after), inside))
    return found


def inside_of(old: Any, new: Any) -> list[str]:
    """A line for each value that differs; the same change in several items of a list is one."""
    found = [f"{dotted(place)}: {said(before)} -> {said(after)}" for place, before, after in _folded(old, new)]
    more = len(found) - MOST
    return found if more <= 0 else [*found[:MOST], f"and {more} more"]


def pairs(old: Any, new: Any, place: Place = ()) -> Iterator[Pair]:
    """The smallest parts that differ, with their places. A part that only one side has is one."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from pairs(old.get(name, ABSENT), new.get(name, ABSENT), (*place, name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and _has_parts(old + new):
        for number, both in enumerate(zip(old, new, strict=True)):
            yield from pairs(*both, (*place, number))
    elif old is ABSENT or new is ABSENT or type(old) is not type(new) or old != new:
        yield place, old, new


def _has_parts(items: list) -> bool:
    return any(isinstance(item, dict | list) for item in items)


def _folded(old: Any, new: Any) -> Iterator[Pair]:
    """Pairs; those that differ in the number of one item only, and say the same, with a range in its place."""
    groups: dict[tuple, list[tuple[int, Any, Any]]] = {}
    for place, before, after in pairs(old, new):
        head, number, tail = _split(place)
        groups.setdefault((head, tail, said(before), said(after)), []).append((number, before, after))
    for (head, tail, _, _), same in groups.items():
        numbers = [number for number, _, _ in same]
        middle = () if numbers[0] < 0 else (_range(numbers),)
        yield (*head, *middle, *tail), *same[0][1:]


def _split(place: Place) -> tuple[Place, int, Place]:
    """What is before the first number in a place, the number (-1: there is none), and what is after it."""
    for position, part in enumerate(place):
        if isinstance(part, int):
            return place[:position], part, place[position + 1 :]
    return place, -1, ()


def _range(numbers: list[int]) -> str | int:
    if len(numbers) == 1:
        return numbers[0]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"[{numbers[0]}..{numbers[-1]}]"
    return f"[{', '.join(map(str, numbers))}]"


def dotted(place: Place) -> str:
    """`("layers", "[0..5]", "mixer", "window")` -> `layers[0..5].mixer.window`."""
    parts = (f"[{part}]" if isinstance(part, int) else part for part in place)
    text = "".join(part if part.startswith("[") else f".{part}" for part in parts)
    return text.removeprefix(".") or "all of it"


def said(value: Any) -> str:
    """A value on part of a line; digests shortened."""
    if value is ABSENT:
        return "none"
    if _is_digest(value):
        return value[:SHOWN]
    if isinstance(value, list) and _has_parts(value):
        return f"{len(value)} items"
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def content_in(store: Store) -> Callable[[str], Any]:
    """The JSON of an object of the store by its sha256; ABSENT where it is not there, or is something else."""

    def content(sha256: str) -> Any:
        try:
            return json.loads(store.object(sha256).read_bytes())
        except (OSError, ValueError):
            return ABSENT

    return content


def _input(place: Place) -> str:
    first, *rest = place
    return WORDS[first] + dotted(tuple(rest)) if first in WORDS and rest else dotted(place)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None

"""Two trees of plain values held against each other, leaf by leaf."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from eulerstack.language.where import leaves

ABSENT = object()


@dataclass(frozen=True)
class Change:
    """A key with its value on either side, None where a side has no such key."""

    key: str
    a: Any
    b: Any


def changes(a: dict, b: dict, prefix: str = "") -> Iterator[Change]:
    """Every leaf that is not the same; a block that only one side has is its leaves, not the null of the other."""
    one, other = dict(leaves(a)), dict(leaves(b))
    for key in dict.fromkeys((*one, *other)):
        left, right = one.get(key, ABSENT), other.get(key, ABSENT)
        lone = left if right is ABSENT else right
        if left == right or (ABSENT in (left, right) and lone is None):
            continue
        yield Change(f"{prefix}{key}", *(None if value is ABSENT else value for value in (left, right)))

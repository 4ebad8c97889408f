"""A sequence as its repeats: `a a a b a a a b` is two times (three times a, b)."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MAX_PERIOD = 64  # of a group that repeats; bounds the work on a schedule of thousands of layers


@dataclass(frozen=True)
class Fold:
    """`times` one item, or `times` a group: the folds in `body`, where `item` is None."""

    times: int
    item: Hashable = None
    body: tuple["Fold", ...] = ()

    @property
    def lines(self) -> int:
        """How long it is when it is written down."""
        return 1 + sum(inner.lines for inner in self.body)


def fold(items: Sequence[Hashable]) -> tuple[Fold, ...]:
    """The shortest way to write `items` with repeats; of two as short, the one that repeats more at once."""
    return _Folder().fold(tuple(items))


def unfold(folds: Sequence[Fold]) -> list[Hashable]:
    """The inverse of `fold`."""
    return [item for f in folds for item in (unfold(f.body) if f.body else [f.item]) * f.times]


class _Folder:
    def __init__(self):
        self.known: dict[tuple, tuple[Fold, ...]] = {}

    def fold(self, items: tuple) -> tuple[Fold, ...]:
        if items not in self.known:
            self.known[items] = self._shortest(items)
        return self.known[items]

    def _shortest(self, items: tuple) -> tuple[Fold, ...]:
        """From the right: the best way to write items[i:] is the best first fold before the best rest."""
        size = len(items)
        repeats = {p: _repeats(items, p) for p in range(1, min(MAX_PERIOD, size // 2) + 1)}
        lines, first = [0] * (size + 1), [None] * size
        for i in reversed(range(size)):
            options = [(covered, one) for covered, one in self._folds(items, i, repeats)]
            covered, one = min(options, key=lambda option: (lines[i + option[0]] + option[1].lines, -option[0]))
            lines[i], first[i] = lines[i + covered] + one.lines, (covered, one)
        found, i = [], 0
        while i < size:
            covered, one = first[i]
            found.append(one)
            i += covered
        return tuple(found)

    def _folds(self, items: tuple, i: int, repeats: dict[int, list[int]]):
        """The folds that may stand at i, each with the number of items it covers."""
        most = repeats[1][i] if 1 in repeats else 1
        for times in {*range(1, min(most, MAX_PERIOD) + 1), most}:
            yield times, Fold(times, items[i])
        for period, found in repeats.items():
            if period > 1 and found[i] > 1:
                body = self.fold(items[i : i + period])
                if len(body) > 1:  # one that is a repeat itself is found as such
                    yield period * found[i], Fold(found[i], body=body)


def _repeats(items: tuple, period: int) -> list[int]:
    """How often the `period` items from each place on follow each other."""
    alike = [0] * (len(items) + 1)  # how many items from here on equal the one a period later
    for i in reversed(range(len(items) - period)):
        alike[i] = alike[i + 1] + 1 if items[i] == items[i + period] else 0
    return [1 + n // period for n in alike[: len(items)]]

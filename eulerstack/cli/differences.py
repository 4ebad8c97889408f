"""The structure of two models held against each other: as text for an architect, and as plain values."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from eulerstack.cli.changes import Change
from eulerstack.cli.diagram import Diagram
from eulerstack.cli.kinds import kinds_of
from eulerstack.cli.structure import Pair, blocks, kind_words, pairs_of, schedules
from eulerstack.cli.tables import labelled
from eulerstack.cli.words import said, short
from eulerstack.ir.types import IR

COLUMN = 40  # where values begin
VALUE = 26  # the longest that stands beside another


@dataclass(frozen=True)
class Differences:
    """`blocks` by name, `pairs` of kinds that differ, and both schedules if they differ."""

    blocks: dict[str, list[Change]]
    pairs: list[Pair]
    schedule: tuple[str, str] | None

    @property
    def same(self) -> bool:
        return not (self.blocks or self.pairs or self.schedule)

    def to_dict(self) -> dict:
        """Values that JSON can hold: changes as {key, a, b}; a kind that only one side has in words."""
        layers = [
            {
                "a": pair.a and pair.a.name,
                "b": pair.b and pair.b.name,
                "changes": [asdict(change) for change in pair.changes],
                "words": None if pair.a and pair.b else kind_words(pair.a or pair.b),
            }
            for pair in self.pairs
        ]
        found = {name: [asdict(change) for change in changes] for name, changes in self.blocks.items()}
        schedule = self.schedule and dict(zip("ab", self.schedule, strict=True))
        return {"same": self.same, "blocks": found, "layers": layers, "schedule": schedule}

    def lines(self) -> list[str]:
        if self.same:
            return ["no difference in structure"]
        lines = []
        for name, changes in self.blocks.items():
            lines += [name, *(line for change in changes for line in _change(change))]
        if self.pairs:
            lines += ["layers", *(line for pair in self.pairs for line in _pair(pair))]
        if self.schedule:
            lines += ["schedule", *_below(*self.schedule)]
        return lines


def compare(a: IR, b: IR) -> Differences:
    one, other = (Diagram(ir, kinds_of(ir)) for ir in (a, b))
    pairs = pairs_of(one, other)
    return Differences(blocks(a, b), [pair for pair in pairs if pair.differs], schedules(one, other, pairs))


def _pair(pair: Pair) -> Iterator[str]:
    if pair.a is None or pair.b is None:
        kind = pair.a or pair.b
        yield from labelled(
            "  ", f"only {'A' if pair.a else 'B'}: {short(kind.name)}", kind_words(kind).split(", "), COLUMN
        )
        return
    yield f"  {short(pair.a.name)}" + ("" if pair.a.name == pair.b.name else f" -> {short(pair.b.name)}")
    for change in pair.changes:
        if change.key != "template":
            yield from _change(change, "    ")


def _change(change: Change, stem: str = "  ") -> Iterator[str]:
    """A key and its two values beside each other, or under it where they are long."""
    a, b = ("-" if value is None else said(value) for value in (change.a, change.b))
    if max(len(a), len(b)) <= VALUE and len(stem + change.key) <= COLUMN - 2:
        yield f"{f'{stem}{change.key}'.ljust(COLUMN)}{a.ljust(VALUE)}  {b}"
        return
    yield from labelled(stem, change.key, [], COLUMN)
    yield from _below(a, b, stem)


def _below(a: str, b: str, stem: str = "") -> Iterator[str]:
    for name, text in (("A", a), ("B", b)):
        yield from labelled(f"{stem}  ", name, text.split(", "), len(stem) + 5)

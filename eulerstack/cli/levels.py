"""The groups in which presets are listed, read from their names."""

import re
from collections.abc import Iterable
from pathlib import Path

OWN, OTHER = "of this workspace", "others"
LEVELS = ("beginner", "intermediate", "advanced", "expert")
NAME = re.compile(rf"arch_(?P<level>{'|'.join(LEVELS)})_.+?(?P<mini>_mini)?|llm_(?P<size>\d+(p\d+)?)b_.+")


def group_of(name: str) -> str:
    """Of a preset of the catalogue: its level, with the small ones of it apart, or its size."""
    match = NAME.fullmatch(name)
    if match is None:
        return OTHER
    if match["size"]:
        return f"llm {match['size'].replace('p', '.')} B"
    return match["level"] + (" mini" if match["mini"] else "")


def grouped(presets: Iterable[Path], own: Path | None) -> dict[str, list[Path]]:
    """Presets by group, in the order of the levels and sizes; those of the folder `own` first, as a group of theirs."""
    found: dict[str, list[Path]] = {}
    for path in presets:
        found.setdefault(OWN if path.parent == own else group_of(path.stem), []).append(path)
    return dict(sorted(found.items(), key=lambda item: _rank(item[0])))


def _rank(group: str) -> tuple[int, float]:
    if group == OWN:
        return 0, 0
    if group == OTHER:
        return 3, 0
    level, _, more = group.partition(" ")
    return (1, LEVELS.index(level) + bool(more) / 2) if level in LEVELS else (2, float(more.removesuffix(" B")))

"""Columns of text, and lines that are broken at the width of a page."""

from collections.abc import Sequence
from textwrap import wrap

PAGE = 100


def columns(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Rows under each other: the first `left` columns to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [text.ljust(widths[i]) if i < left else text.rjust(widths[i]) for i, text in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return lines


def labelled(stem: str, label: str, words: Sequence[str], column: int = 30) -> list[str]:
    """`stem` and `label`, then words after commas from `column` on; what does not fit goes on below, with the stem's
    lines drawn on."""
    head = f"{stem}{label}"
    texts = _wrapped(words, PAGE - column) or [""]
    below = "".join("|" if letter == "|" else " " for letter in stem)
    firsts = [head] if len(head) > column - 2 and texts[0] else [f"{head.ljust(column)}{texts.pop(0)}"]
    return [line.rstrip() for line in (*firsts, *(f"{below.ljust(column)}{text}" for text in texts))]


def _wrapped(words: Sequence[str], width: int) -> list[str]:
    """Lines of at most `width`, broken after commas; inside of words only where one is too long for a line."""
    held = [word if len(word) >= width else word.replace(" ", "\xa0") for word in words]
    return [line.replace("\xa0", " ") for line in wrap(", ".join(held), width, break_on_hyphens=False)]

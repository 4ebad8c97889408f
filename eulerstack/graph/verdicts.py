"""The verdicts of a run as one table: what a stage that judges (it has a `check`) has said of each preset."""

from collections import Counter
from dataclasses import dataclass, field

from eulerstack.graph.step import Step

ALL_WELL = ("PASS", "skipped")


@dataclass
class Verdicts:
    """Rows by stage and preset: the verdict in a word, what it rests on, and how it came about in this run."""

    rows: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict)
    news: bool = False

    def ended(self, step: Step, how: str) -> None:
        """A step that was made or restored, or is up to date; its summary begins with the verdict."""
        verdict, _, figures = step.summary.partition(": ")
        self._add(step, verdict, figures, how)

    def failed(self, step: Step, message: str) -> None:
        """A step that failed: the first thing that its error names."""
        first = message.strip().partition("\n")[0]
        self._add(step, "FAIL", first.rpartition("SanityError: ")[2], "")

    def blocked(self, step: Step, why: str) -> None:
        """A step that never ran, since one before it failed."""
        self._add(step, "blocked", why, "")

    def _add(self, step: Step, verdict: str, figures: str, how: str) -> None:
        if hasattr(step.stage, "check"):
            self.rows[step.stage_name, step.preset.stem] = (verdict, figures, how)
            self.news |= how != "up to date"

    def text(self) -> str:
        """The table and a line that counts; nothing for a single preset, or where nothing is new."""
        stages = dict.fromkeys(stage for stage, _ in self.rows) if self.news else ()
        return "".join(map(self._table, stages))

    def _table(self, stage: str) -> str:
        rows = sorted((preset, *row) for (of, preset), row in self.rows.items() if of == stage)
        if len(rows) < 2:
            return ""
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join([*(f"{row[n]:<{widths[n]}}" for n in range(3)), row[3]]).rstrip() for row in rows]
        counts = Counter(row[1] for row in rows)
        told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in sorted(counts, key=_order))
        return "\n".join(["", f"{stage} of {len(rows)} presets: {told}", *lines, "", ""])


def _order(verdict: str) -> tuple[bool, str]:
    return verdict not in ALL_WELL, verdict

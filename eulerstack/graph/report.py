"""What a doit run prints: a line for each task that was executed, a table of verdicts, and a line at the end."""

import signal
import sys
import time
from collections import Counter

from doit.exceptions import UnmetDependency
from doit.reporter import ConsoleReporter

from eulerstack.graph.step import SKIPPED, Step
from eulerstack.graph.verdicts import Verdicts


class Reporter(ConsoleReporter):
    """One line per executed task; tasks that are up to date are counted."""

    desc = "one line per executed task"

    def __init__(self, outstream, options):
        super().__init__(outstream, options)
        self.began = time.monotonic()
        self.started: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.verdicts = Verdicts()
        self.blocked = False

    def initialize(self, tasks, selected_tasks):
        """Before the first task: tidy up after killed runs, and let SIGTERM end this one as Ctrl-C does."""
        signal.signal(signal.SIGTERM, _interrupt)
        sys.excepthook = _quiet_interrupt
        for step in filter(None, map(step_of, tasks.values())):
            step.place.sources.pin()
            step.place.sweep()
            self.width = max(len(task.name) for task in tasks.values())
            break

    def execute_task(self, task):
        self.started[task.name] = time.monotonic()

    def skip_uptodate(self, task):
        step = step_of(task)
        if step is not None:
            self.counts[step.note or "up to date"] += 1
            self.verdicts.ended(step, "up to date")

    def skip_ignore(self, task):
        self.counts["ignored"] += 1

    def add_success(self, task):
        step = step_of(task)
        if step is None:
            return
        self.counts[step.note or step.how] += 1
        self.verdicts.ended(step, "" if step.note else step.how)
        self._line(task, *((SKIPPED, step.skipped_for) if step.note else (step.how, step.summary)))

    def add_failure(self, task, fail):
        step = step_of(task)
        if isinstance(fail, UnmetDependency):
            self.blocked = True
            if step is None:
                return  # a group is no task of its own
            self.counts["blocked"] += 1
            why = f"needs {fail.message}, which failed"
            self._line(task, "blocked", why)
            self.verdicts.blocked(step, why)
        else:
            self.counts["failed"] += 1
            self._line(task, "FAILED", "")
            self.write(f"{fail.get_msg().strip()}\n")
            self.verdicts.failed(step, fail.get_msg())

    def complete_run(self):
        self.write(self.verdicts.text())
        total = sum(self.counts.values())
        counted = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()) if what != "up to date")
        fresh = self.counts["up to date"]
        if not total and not self.runtime_errors:
            self.write("nothing to do: there are no presets\n")
        elif fresh == total:
            self.write(f"{total} tasks up to date\n")
        else:
            self.write(f"{counted}, {fresh} up to date in {time.monotonic() - self.began:.1f} s\n")
        self.write("".join(f"{error}\n" for error in self.runtime_errors))
        if self.blocked and sys.exc_info()[0] is None:
            raise SystemExit(1)  # doit would exit with 2, its status for errors of the graph itself

    def _line(self, task, how: str, summary: str) -> None:
        now = time.monotonic()
        seconds = now - self.started.get(task.name, now)
        self.write(f"{task.name:<{self.width}}  {how:<8}  {seconds:6.1f} s  {summary}".rstrip() + "\n")
        self.outstream.flush()


def step_of(task) -> Step | None:
    """The step behind a doit task; None for groups."""
    return (task.meta or {}).get("step")


def _interrupt(number, frame):
    raise KeyboardInterrupt


def _quiet_interrupt(kind, error, trace):
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted; what was finished is kept", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)

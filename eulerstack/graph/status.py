"""`doit list`: where every preset and stage stands."""

from fnmatch import fnmatch

from doit.cmd_list import List

from eulerstack.graph.names import resolved
from eulerstack.graph.report import step_of
from eulerstack.graph.step import Step

UP_TO_DATE, STALE, NEVER_RUN, FAILED, SKIPPED = "up to date", "stale", "never run", "failed", "skipped"
DONE = (UP_TO_DATE, SKIPPED)
_list = List._execute


def states(steps: list[Step]) -> dict[str, tuple[str, str]]:
    """Step name -> (status, reason), of steps in an order that has upstream first.

    What is below a step that is not done is stale at best, for nobody knows its inputs yet.
    """
    found: dict[str, tuple[str, str]] = {}
    for step in steps:
        undone = [above.name for above in step.upstream if found[above.name][0] not in DONE]
        if not undone and step.is_fresh():
            found[step.name] = (SKIPPED, step.skipped_for) if step.note else (UP_TO_DATE, "")
        elif step.failure.exists():
            found[step.name] = (FAILED, _first_line(step))
        elif not step.stamp.exists():
            found[step.name] = (NEVER_RUN, "")
        else:
            found[step.name] = (STALE, f"below {undone[0]}" if undone else step.reason())
    return found


def execute(self, subtasks=False, quiet=False, pos_args=None):
    """In place of doit's `list`: a table of all presets, or a line for each task with `--all` or of what is named.

    A name is that of a task, of a group or of a preset.
    """
    steps = [step for step in map(step_of, self.task_list) if step is not None]
    if quiet or not steps:
        return _list(self, subtasks=subtasks, quiet=quiet, pos_args=pos_args)
    tasks = {task.name: task for task in self.task_list}
    presets = {step.preset.stem for step in steps}
    given = resolved(pos_args or (), self.task_list, presets)
    names = [task for name in given for task in ([name] if name in tasks else _of_name(name, steps))]
    found = states(steps)
    if names or subtasks:
        named = [tasks[name] for name in names or tasks]
        chosen = [name for task in named for name in ([task.name] if step_of(task) else task.task_dep)]
        text = _lines({name: found[name] for name in chosen})
    else:
        text = _table(steps, found)
    self.outstream.write(text + _orphans(steps))
    return 0


def install() -> None:
    """Make `doit list` ours.

    A command can be replaced from pyproject.toml, which a workspace does not have, or by an entry point, which needs an
    installed package and changes `list` for every other project; but not from a dodo.py. doit looks `_execute` up after
    it has loaded dodo.py, so this takes effect in time; where there is no step among the tasks, doit's own runs.
    """
    List._execute = execute


def _of_name(name: str, steps: list[Step]) -> list[str]:
    """The tasks of a preset, of a pattern, or with a target of this name."""
    return [step.name for step in steps if name in (step.preset.stem, str(step.stamp)) or fnmatch(step.name, name)]


def _table(steps: list[Step], found: dict) -> str:
    stages = list(dict.fromkeys(step.stage_name for step in steps))
    presets = sorted({step.preset.stem for step in steps})
    rows = [["", *stages], *([preset, *(found[f"{stage}:{preset}"][0] for stage in stages)] for preset in presets)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _lines(found: dict) -> str:
    width = max(map(len, found), default=0)
    rows = (f"{name:<{width}}  {status:<10}  {reason}".rstrip() for name, (status, reason) in found.items())
    return "".join(f"{row}\n" for row in rows)


def _orphans(steps: list[Step]) -> str:
    """Built presets that have no file any more."""
    build, known = steps[0].place.build, {step.preset.stem for step in steps}
    built = sorted(path.parent.name for path in build.glob("*/.stamps"))
    return "".join(
        f"{build / name}: its preset is gone; remove the directory if you need it no more\n"
        for name in built
        if name not in known
    )


def _first_line(step: Step) -> str:
    try:
        return step.failure.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""

"""Names of tasks as users type them: a short one for a preset's sanity, and help where there is no such task."""

from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import wraps

from doit.cmd_clean import Clean
from doit.cmd_forget import Forget
from doit.cmd_ignore import Ignore
from doit.cmd_info import Info
from doit.cmd_run import Run
from doit.exceptions import InvalidCommand

from eulerstack import paths
from eulerstack.errors import Problem, ValidationError
from eulerstack.graph.report import step_of
from eulerstack.graph.step import Step

SANITY = "cpu_sanity"  # what `doit`, the group `sanity` and `sanity:x` lead to
COMMANDS = ("list", "clean", "run", "help", "info", "forget")
SEE = "docs/building.md#tasks"


def resolved(names: Iterable[str], tasks: list, others: Collection[str] = (), commands: Collection[str] = ()) -> list:
    """The names with `sanity:x` written out. `others` are right beside those of tasks and targets, `commands` are what
    may have been meant.

    InvalidCommand, which doit prints without a traceback, with every name that is none.
    """
    known = {task.name for task in tasks} | {target for task in tasks for target in task.targets} | set(others)
    steps = [step for step in map(step_of, tasks) if step]
    found, problems = [], []
    for name in names:
        full = f"{SANITY}:{name.partition(':')[2]}" if name.startswith("sanity:") else name
        if full not in known and not name.startswith("-") and not any(fnmatch(one, full) for one in known):
            fix = _advice(full, found[-1:], steps, commands)
            problems.append(Problem("ValidationError", name, None, None, "", "no such task", fix, SEE))
        found.append(full)
    if problems:
        raise InvalidCommand(str(ValidationError(problems)))
    return found


def install() -> None:
    """Have the commands that take names of tasks resolve them first; why so is told in status.py."""
    for command in (Run, Clean, Forget, Ignore, Info):
        command._execute = _naming(command._execute, COMMANDS if command is Run else ())


def _naming(execute: Callable, commands: Collection[str]) -> Callable:
    @wraps(execute)
    def named(self, *arguments, **options):
        if not self.sel_default_tasks and any(map(step_of, self.task_list)):
            # the very list that doit hands on
            self.sel_tasks[:] = resolved(self.sel_tasks, self.task_list, commands=commands)
        return execute(self, *arguments, **options)

    return named


def _advice(name: str, before: list[str], steps: list[Step], commands: Collection[str]) -> str:
    """What was meant, as far as one can tell: a stage of a preset, a preset after a stage, a command."""
    stages, presets = {step.stage_name for step in steps}, {step.preset.stem for step in steps}
    stage, colon, preset = name.partition(":")
    if not colon:
        stage, preset = next((one for one in before if one in stages), SANITY), name
        if name not in presets and (near := _near(name, [*stages, "sanity", *commands])):
            return f"did you mean '{near}'?"
    if preset not in presets and preset in paths.presets_in(paths.catalogue_dir()):
        return f"it is in the catalogue, not in this workspace: `eulerstack new {preset} --from {preset}`"
    if close := _near(preset, presets):
        return f"did you mean '{_near(stage, stages) or SANITY}:{close}'?"
    return "`doit list` shows every preset and stage"


def _near(name: str, known: Collection[str]) -> str | None:
    return next(iter(get_close_matches(name, sorted(known), 1)), None)

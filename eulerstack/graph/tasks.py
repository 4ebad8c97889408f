"""The doit tasks: one for each stage and preset, made from file names alone.

A dodo.py needs `from eulerstack.graph.tasks import *` and nothing else.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from doit.exceptions import InvalidDodoFile, TaskFailed

from eulerstack import paths
from eulerstack.errors import EulerStackError, ValidationError
from eulerstack.graph import clean, names, status
from eulerstack.graph.names import SANITY
from eulerstack.graph.report import Reporter
from eulerstack.graph.step import Step
from eulerstack.graph.workplace import Workplace

__all__ = ["DOIT_CONFIG", "task_stages"]

DOIT_CONFIG = {
    # doit's own record decides nothing here; in memory, it can neither be damaged nor keep a second doit waiting
    "backend": "sqlite3",
    "dep_file": ":memory:",
    "par_type": "thread",
    "reporter": Reporter,
    "verbosity": 2,
    "default_tasks": ["sanity"],
}


def tasks_of(package: str) -> Callable[[], Iterator[dict]]:
    """A doit task creator for the stages in a package: for each module in it, and each preset, a task."""

    def task_stages():
        yield from _tasks(package)

    return task_stages


def _tasks(package: str) -> Iterator[dict]:
    try:
        place = Workplace(package)
        presets = _presets(place.presets)
    except EulerStackError as error:
        raise InvalidDodoFile(str(error)) from None  # doit prints this one without a traceback
    stages = _stages(package)
    for stage in stages.values():
        yield {"basename": _short(stage), "name": None, "doc": _first_line(stage)}
    for preset in presets.values():
        steps: dict[str, Step] = {}
        for name, stage in stages.items():
            steps[name] = Step(stage, preset, place, tuple(steps[above] for above in stage.AFTER))
            yield _task(steps[name])
    subtasks = [f"{SANITY}:{preset}" for preset in presets]
    yield {"basename": "sanity", "actions": None, "task_dep": subtasks, "doc": "check every preset on the CPU"}


def _presets(folder: Path) -> dict[str, Path]:
    """The presets by name; ValidationError for a name that doit would take for something else."""
    found = paths.presets_in(folder)
    for path in found.values():
        if "=" in path.stem or "*" in path.stem:
            what = "the name of a preset may hold neither '=' nor '*'"
            raise ValidationError.at(path, what, "rename the file", "docs/building.md#tasks")
    return found


def _task(step: Step) -> dict:
    return {
        "basename": step.stage_name,
        "name": step.preset.stem,
        "actions": [partial(_build, step)],
        "uptodate": [step.is_fresh],
        "targets": [str(step.stamp)],
        "task_dep": [above.name for above in step.upstream],
        "io": {"capture": False},
        "meta": {"step": step},
        "doc": f"{_first_line(step.stage)} {step.preset.name}",
    }


def _build(step: Step) -> TaskFailed | None:
    try:
        step.build()
    except EulerStackError as error:
        return TaskFailed(str(error))
    return None


def _stages(package: str) -> dict[str, ModuleType]:
    """The stages by name, upstream first."""
    folder = Path(import_module(package).__file__).parent
    files = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    waiting = {name: import_module(f"{package}.{name}") for name in files}
    found: dict[str, ModuleType] = {}
    while waiting:
        ready = [name for name, stage in waiting.items() if all(above in found for above in stage.AFTER)]
        if not ready:
            raise ValueError(f"stages wait for each other or for one that does not exist: {', '.join(waiting)}")
        found |= {name: waiting.pop(name) for name in ready}
    return found


def _short(stage: ModuleType) -> str:
    return stage.__name__.rpartition(".")[2]


def _first_line(stage: ModuleType) -> str:
    return (stage.__doc__ or "").strip().partition("\n")[0]


task_stages = tasks_of("eulerstack.stages")
status.install()
names.install()
clean.install()

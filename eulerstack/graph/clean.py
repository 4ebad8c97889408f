"""`doit clean`: what tasks have written under `build/`. The cache stays, so the next run restores it."""

from contextlib import suppress
from pathlib import Path

from doit.cmd_clean import Clean
from doit.exceptions import InvalidCommand

from eulerstack.errors import CacheError
from eulerstack.graph.report import step_of
from eulerstack.graph.step import SEE, Step

_clean = Clean.clean_tasks


def written(step: Step) -> list[Path]:
    """The outputs of a step, its stamp and the record of its failure, as far as they are there.

    A folder in the place of an output is none of ours: those are links into the cache.
    """
    paths = [*(step.build_folder / name for name in step.stage.OUTPUTS), step.stamp, step.failure]
    return [path for path in paths if path.is_symlink() or path.is_file()]


def clean_tasks(self, tasks, dryrun, cleanforget):
    """In place of doit's: a line for each step of which something is there."""
    known = {task.name: task for task in self.task_list}
    groups = [task for task in tasks if not step_of(task) and not task.has_subtask]  # `sanity`: of tasks of others
    below = [*tasks, *(known[name] for task in groups for name in task.task_dep)]
    chosen = {task.name: step_of(task) for task in below if step_of(task)}
    found = {name: paths for name, step in chosen.items() if (paths := written(step))}
    width = max(map(len, found), default=0)
    for name, paths in found.items():
        if not dryrun:
            _remove(paths, chosen[name])
        names = ", ".join(path.relative_to(chosen[name].build_folder).as_posix() for path in paths)
        self.outstream.write(f"{name:<{width}}  {'would remove' if dryrun else 'removed'} {names}\n")
    if chosen:
        self.outstream.write(_end(len(found), next(iter(chosen.values())), dryrun))
    _clean(self, [task for task in tasks if not step_of(task)], dryrun, cleanforget)


def install() -> None:
    """Make `doit clean` ours; why so is told in status.py."""
    Clean.clean_tasks = clean_tasks


def _remove(paths: list[Path], step: Step) -> None:
    """The files and links, and the folders that they leave empty."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            what = f"cannot be removed: {error.strerror}"
            raise InvalidCommand(str(CacheError.at(path, what, "correct its permissions", SEE))) from None
    for folder in (step.stamp.parent, step.build_folder):
        with suppress(OSError):
            folder.rmdir()


def _end(number: int, step: Step, dryrun: bool) -> str:
    if not number:
        return f"nothing to remove in {step.place.build}\n"
    many = f"{number} task{'s' * (number > 1)}"
    if dryrun:
        return f"{many} would be cleaned in {step.place.build}\n"
    return f"{many} cleaned in {step.place.build}; what is in the cache, doit restores\n"

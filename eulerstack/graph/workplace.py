"""What the steps of one doit process share: where things lie, what is remembered, who does the work."""

import sys
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from eulerstack import paths
from eulerstack.digest import digests_in
from eulerstack.graph import locks
from eulerstack.graph.source import Libraries, Sources
from eulerstack.graph.store import Store

if TYPE_CHECKING:
    from eulerstack.graph.step import Step
    from eulerstack.graph.worker import Pool


class Workplace:
    """Everything is made when first needed: a run with nothing to do starts no process and writes no file."""

    def __init__(self, package: str):
        self.package = package
        self.workspace = paths.workspace()
        self.presets = paths.presets_dir()
        self.build = paths.build_dir()
        self.cache = paths.cache_dir()
        self.digests = digests_in(self.cache)
        self.libraries = Libraries()
        self.scratch = locks.Scratch(self.cache / "tmp")
        self.build_scratch = locks.Scratch(self.build / ".tmp")
        self.store = Store(self.cache, self.digests, self.scratch, _say)

    @cached_property
    def sources(self) -> Sources:
        """The files of the package the stages belong to."""
        top = import_module(self.package.partition(".")[0])
        return Sources(Path(top.__file__).parent, self.digests)

    @cached_property
    def pool(self) -> "Pool":
        from eulerstack.graph.worker import Pool  # only if there is work

        return Pool(self.cache / "logs")

    def work(self, step: "Step", folder: Path, out: Path) -> None:
        """Have the stage's `run`, or its script, fill `out`; EulerStackError if it fails."""
        from eulerstack.graph.worker import Job

        stage, arguments = step.stage, (step.preset, step.build_folder, out)
        command = stage.script(*arguments) if stage.WORKER == "stranger" else [stage.__name__, *map(str, arguments)]
        self.pool.run(
            Job(
                name=step.name,
                kind=stage.WORKER,
                call=command[0],
                arguments=tuple(command[1:]),
                folder=folder,
                log=self.cache / "logs" / step.stage_name / f"{step.preset.stem}.log",
                limit=stage.TIME_LIMIT,
                workspace=self.workspace,
            )
        )

    def sweep(self) -> None:
        """Remove what killed processes left."""
        self.scratch.sweep()
        self.build_scratch.sweep()
        locks.sweep(self.cache / "locks")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

"""One stage of one preset: its key, whether its outputs stand, and how they are made.

A stage is a module of `eulerstack/stages/`, found by its file name, that imports nothing heavy and has

| name | what |
|---|---|
| `AFTER`, `LIBRARIES` | the stages before it; the distributions whose versions enter the key |
| `OUTPUTS` | the files and directories it writes |
| `WORKER`, `TIME_LIMIT` | "front", "package" or "stranger" (worker.py); seconds |
| `MODELING` | which digests of code.json's files enter the key: "bytes", "meaning" or None |
| `inputs(preset, build)` | what else enters the key, as JSON |
| `run(preset, build, out)` | the work: writes OUTPUTS into the directory `out` |
| `CHECKS` | for a stranger: the script and the files beside it that it imports |
| `script(preset, build, out)` | for a stranger, in place of `run`: the command, that is the script and its arguments |
| `summary(out)` | one line for the terminal |
| `prepare(preset, build)` | optional: brings to this machine what the key will speak of |
| `check(out)` | optional: raises if what was written is not good enough |
| `skipped()` | optional: why the stage cannot run on this machine, "" if it can |
| `digests(out)` | optional: sha256 by file name, of files whose writer has computed it already |
"""

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from eulerstack.digest import canonical, digest_of
from eulerstack.errors import CacheError, EulerStackError
from eulerstack.graph import locks, stamp, tampering
from eulerstack.graph.source import PYTHON

if TYPE_CHECKING:
    from eulerstack.graph.workplace import Workplace

KEY_VERSION = 1  # another value makes every result of before unknown
SKIPPED = "skipped"
SEE = "docs/building.md#failures"


@dataclass
class Step:
    """A task of the graph. `how` and `summary` say what its last `build` came to, or what its stamp says."""

    stage: ModuleType
    preset: Path
    place: "Workplace"
    upstream: tuple["Step", ...]
    how: str = field(default="", init=False)
    summary: str = field(default="", init=False)
    note: str = field(default="", init=False)
    _was_fresh: bool = field(default=False, init=False)

    @cached_property
    def stage_name(self) -> str:
        return self.stage.__name__.rpartition(".")[2]

    @cached_property
    def name(self) -> str:
        return f"{self.stage_name}:{self.preset.stem}"

    @cached_property
    def build_folder(self) -> Path:
        return self.place.build / self.preset.stem

    @cached_property
    def stamp(self) -> Path:
        return self.build_folder / ".stamps" / f"{self.stage_name}.json"

    @cached_property
    def failure(self) -> Path:
        """The record that the last run of this step failed."""
        return self.build_folder / ".stamps" / f"{self.stage_name}.failed"

    @property
    def skipped_for(self) -> str:
        """Why the last build was skipped."""
        return self.note.removeprefix(SKIPPED).lstrip(": ")

    def key(self) -> dict:
        """All that decides the outputs, as JSON. Upstream must be built."""
        stage, place = self.stage, self.place
        key = {
            "version": KEY_VERSION,
            "stage": self.stage_name,
            "python": PYTHON,
            "code": place.sources.closure(stage.__name__),
            "libraries": place.libraries.versions(stage.LIBRARIES),
            "inputs": json.loads(canonical(stage.inputs(self.preset, self.build_folder))),
        }
        if stage.WORKER == "stranger":
            key["script"] = {path.name: place.sources.meaning(path) for path in stage.CHECKS}
        if stage.MODELING:
            files = json.loads((self.build_folder / "code.json").read_bytes())["files"]
            key["modeling"] = {name: digests[stage.MODELING] for name, digests in files.items()}
        return key

    def is_fresh(self) -> bool:
        """Whether the outputs are there, whole, and made with the key of now; doit's `uptodate`."""
        self._was_fresh = False
        written = stamp.read(self.stamp)
        if written is not None:
            with suppress(OSError, EulerStackError):  # what cannot be read is not there: building says what is wrong
                self._was_fresh = written["key"] == self.key() and self.place.store.is_published(
                    written["outputs"], self.build_folder
                )
            self.summary, self.note = written["summary"], written["note"]
        return self._was_fresh

    def reason(self) -> str:
        """Why `is_fresh` is not so, given that upstream is."""
        written = stamp.read(self.stamp)
        if written is None:
            return "its stamp is damaged" if self.stamp.exists() else "it was never run"
        try:
            changed = stamp.differences(written["key"], self.key())
        except (OSError, EulerStackError) as error:
            return str(error).partition("\n")[0]
        return f"changed: {', '.join(changed)}" if changed else "its outputs were changed or removed"

    def build(self) -> None:
        """Restore or make the outputs and write the stamp. EulerStackError if that fails; the failure is recorded."""
        try:
            self._build()
        except (EulerStackError, OSError) as error:
            said = error if isinstance(error, EulerStackError) else _explained(error, self.name)
            with suppress(OSError):  # a full disk must not hide what happened
                stamp.place(str(said).encode(), self.failure, self.place.build_scratch.folder())
            raise said from None
        self.failure.unlink(missing_ok=True)

    def _build(self) -> None:
        place = self.place
        above = filter(None, (stamp.read(step.stamp) for step in self.upstream))
        with locks.in_use([place.store.result(digest_of(made["key"])) for made in above]):
            self._check_before()
            if hasattr(self.stage, "prepare"):
                self.stage.prepare(self.preset, self.build_folder)
            key = self.key()
            with locks.held(place.cache / "locks" / f"{digest_of(key)}.lock", self._say_waiting):
                place.scratch.folder()  # its lock says to all who share the cache that a run is at work
                if not self._was_fresh and (written := stamp.read(self.stamp)):
                    tampering.tell(self, written, key)
                found = self._restore(key) or self._make_and_publish(key)
                # under the lock: who finds it free sees by the stamp that the result is in use
                stamp.write(self.stamp, found, place.build_scratch.folder())
        self.summary, self.note = found["summary"], found["note"]

    def _restore(self, key: dict) -> dict | None:
        """The outputs as the store has them, if it has all of them to the end."""
        place = self.place
        # asked to run though fresh (`doit -a`): then the work is done again, and must come out the same
        found = None if self._was_fresh else place.store.find(digest_of(key))
        if found is not None:
            with suppress(FileNotFoundError):
                place.store.publish(found["outputs"], self.build_folder, place.build_scratch)
                self.how = "restored"
                return found
        return None

    def _make_and_publish(self, key: dict) -> dict:
        self.how = "made"
        found = self._make(key)
        self.place.store.publish(found["outputs"], self.build_folder, self.place.build_scratch)
        return found

    def _check_before(self) -> None:
        """The graph builds upstream first; `doit -s` and others at work meanwhile can break that."""
        for step in self.upstream:
            if not step.is_fresh():
                what = f"{step.name} is not up to date: {step.reason()}"
                raise CacheError.at(self.name, what, "run doit without --single, or again", SEE)
        self._check_code()

    def _check_code(self) -> None:
        changed = self.place.sources.changed(self.stage.__name__)
        if changed:
            what = f"{', '.join(changed)} changed while doit was running; nothing was published"
            raise CacheError.at(self.name, what, "run doit again", SEE)

    def _check_after(self, key: dict, preset_digest: str) -> None:
        self._check_code()
        changed = stamp.differences(key, self.key())
        if changed:
            if self.place.digests.file(self.preset) != preset_digest:
                changed.insert(0, str(self.preset))
            what = f"{', '.join(changed)} changed while it was running; nothing was published"
            raise CacheError.at(self.name, what, "run doit again", SEE)

    def _make(self, key: dict) -> dict:
        place, stage = self.place, self.stage
        preset_digest = place.digests.file(self.preset)
        with place.scratch.job() as folder:
            out = folder / "out"
            out.mkdir()
            why = stage.skipped() if hasattr(stage, "skipped") else ""
            if why:
                _write_skipped(out / stage.OUTPUTS[0], why)
            else:
                place.work(self, folder, out)
            self._check_outputs(out)
            self._check_after(key, preset_digest)
            known = stage.digests(out) if hasattr(stage, "digests") else {}
            summary = stage.summary(out)
            note = summary if summary.startswith(SKIPPED) else ""
            return place.store.keep({"key": key, "note": note, "summary": summary}, out, known)

    def _check_outputs(self, out: Path) -> None:
        """The files must be those announced, and what is in them must satisfy the stage, if it asks (`check`)."""
        written = sorted(path.name for path in out.iterdir())
        if written != sorted(self.stage.OUTPUTS):
            what = f"wrote {', '.join(written) or 'nothing'} where {', '.join(self.stage.OUTPUTS)} was expected"
            raise CacheError.at(self.name, what, "mend the stage", SEE)
        if hasattr(self.stage, "check"):
            try:
                self.stage.check(out)
            except EulerStackError:
                self._show(out)
                raise

    def _show(self, out: Path) -> None:
        """Put the files of a failed check in their place, for they say why; no stamp vouches for them."""
        for path in out.glob("*.json"):
            stamp.place(path.read_bytes(), self.build_folder / path.name, self.place.build_scratch.folder())

    def _say_waiting(self, pid: str) -> None:
        print(f"{self.name} waits for process {pid}, which is making the same", file=sys.stderr, flush=True)


def _explained(error: OSError, name: str) -> CacheError:
    path = error.filename2 or error.filename  # of a rename, the place that was to be taken
    where = f"{path}: " if path else ""
    return CacheError.at(name, f"{where}{error.strerror}", "make room, or correct the path and its permissions", SEE)


def _write_skipped(path: Path, why: str) -> None:
    verdict = {"checks": [], "reason": why, "training": None, "verdict": "SKIPPED"}
    path.write_text(json.dumps(verdict, indent=1, sort_keys=True) + "\n", encoding="utf-8")

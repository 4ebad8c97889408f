"""What the code behind a stage means, and which libraries it runs on: the parts of a key that no preset decides."""

import json
import os
import re
import sys
from contextlib import suppress
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

from eulerstack.digest import Digests, digest_of

PYTHON = "{}.{}".format(*sys.version_info[:2])


class Sources:
    """The Python files of the package at `root`, as they were when first asked for.

    A process runs the code it has imported, so its keys speak of that code to the end; `changed` says when the files
    have moved on and results can no longer be published.
    """

    def __init__(self, root: Path, digests: Digests):
        self.root = root
        self.digests = digests
        self._first: dict[str, str] | None = None
        self._closures: dict[str, dict[str, str]] = {}

    def closure(self, module: str) -> dict[str, str]:
        """File -> meaning digest, of `module` and all it imports of the package; files as `package/room/file.py`.

        Comments and docstrings do not count (`eulerstack.compiler.imports.meaning`).
        """
        if module not in self._closures:
            self._closures[module] = self._remembered(module)
        return self._closures[module]

    def changed(self, module: str) -> list[str]:
        """The files of the closure that differ from what they were at first, and new or lost ones beside them."""
        first, now, files = self._snapshot(), self._digests(), self.closure(module)
        folders = {name.rpartition("/")[0] for name in files}
        differing = {name for name in first.keys() | now.keys() if first.get(name) != now.get(name)}
        moved = {name for name in first.keys() ^ now.keys() if name.rpartition("/")[0] in folders}
        return sorted((differing & files.keys()) | moved)

    def pin(self) -> None:
        """Take the files of now for those that this process runs."""
        self._snapshot()

    def _snapshot(self) -> dict[str, str]:
        if self._first is None:
            self._first = self._digests()
        return self._first

    def _digests(self) -> dict[str, str]:
        found = {}
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if name != "__pycache__"]
            prefix = f"{self.root.name}{folder[len(os.fspath(self.root)) :]}"
            for name in names:
                if name.endswith(".py"):
                    found[f"{prefix}/{name}"] = self._digest(Path(folder, name))
        return found

    def _digest(self, path: Path) -> str:
        if not self.digests.is_known(path):
            # an edit that keeps the size and the second of the last one would be answered with its bytecode
            with suppress(OSError):
                Path(cache_from_source(path)).unlink()
        return self.digests.file(path)

    def _remembered(self, module: str) -> dict[str, str]:
        key = f"closure {module} {PYTHON} {digest_of(self._snapshot())}"
        known = self.digests.memo.get(key)
        if known is not None:
            return json.loads(known)
        computed = self._computed(module)
        if self._digests() == self._snapshot():  # else it is of files edited since
            self.digests.memo.put(key, json.dumps(computed))
        return computed

    def _computed(self, module: str) -> dict[str, str]:
        from eulerstack.compiler.imports import package_closure  # imports ast: only when a source has changed

        found = package_closure([module], self.root)
        return {path.relative_to(self.root.parent).as_posix(): self.meaning(path) for path in found.values()}

    def meaning(self, path: Path) -> str:
        """`eulerstack.compiler.imports.meaning`, remembered by the content of the file."""
        key = f"meaning {PYTHON} {self.digests.file(path)}"
        known = self.digests.memo.get(key)
        if known is None:
            from eulerstack.compiler.imports import meaning

            known = meaning(path)
            self.digests.memo.put(key, known)
        return known


class Libraries:
    """Versions of installed distributions, read off the names of `.dist-info` directories: one listing for all."""

    def __init__(self, path: list[str] | None = None):
        self.path = path
        self._found: dict[str, str] | None = None

    def versions(self, names: tuple[str, ...]) -> dict[str, str]:
        """Distribution -> version; "absent" for one that is not installed."""
        if self._found is None:
            self._found = self._listed()
        return {name: self._found.get(_normalized(name)) or self._searched(name) for name in names}

    def _listed(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for folder in reversed(self.path if self.path is not None else sys.path):
            try:
                names = [entry.name for entry in Path(folder or ".").iterdir()]
            except OSError:
                continue
            here: dict[str, set[str]] = {}
            for name in names:
                if name.endswith(".dist-info"):
                    distribution, _, version = name.removesuffix(".dist-info").partition("-")
                    here.setdefault(_normalized(distribution), set()).add(version)
            # two versions in one folder are the rest of a broken upgrade: both are said
            found |= {name: " and ".join(sorted(versions)) for name, versions in here.items()}
        return found

    def _searched(self, name: str) -> str:
        try:
            return metadata.version(name) if self.path is None else "absent"
        except metadata.PackageNotFoundError:
            return "absent"


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

"""Digests of files and of JSON, remembered between runs.

The memory is one append-only text file. A line carries its own checksum, so a torn or flipped one is as good as absent,
and a single small `write` in append mode keeps the lines of several processes apart. Losing the file costs time only.
"""

import hashlib
import json
import os
import stat
import sys
import threading
import time
import zlib
from functools import cache
from pathlib import Path

from eulerstack import paths
from eulerstack.errors import CacheError

SEE = "docs/building.md#cache"
MAX_BYTES = 16 << 20  # of the memory's file; the older half goes when it is larger
TICK = 20_000_000  # ns: a file changed less than a clock tick before it was read may change again unseen
COARSE = 2_000_000_000  # ns: the same on file systems that keep whole seconds


def canonical(value) -> bytes:
    """The one spelling of a JSON value: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value) -> str:
    """The sha256 of a JSON value."""
    return hashlib.sha256(canonical(value)).hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 of the file at `path`, links followed, remembered in the cache of this process's workspace."""
    return digests_in(_cache_dir()).file(path)


@cache
def digests_in(folder: Path) -> "Digests":
    """The digests remembered in the cache directory `folder`, the same object each time."""
    return Digests(Memo(folder / "digests"))


@cache
def _cache_dir() -> Path:
    return paths.cache_dir()


def hash_file(path: Path) -> str:
    """The sha256 of a file's content, read now."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Memo:
    """Strings by key, kept in the file at `path`; the last one put under a key counts."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._known: dict[str, str] | None = None
        self._file: int | None = None

    def get(self, key: str) -> str | None:
        """What was put under `key`, or None."""
        if self._known is None:
            self._known = self._load()
        return self._known.get(key)

    def put(self, key: str, value: str) -> None:
        """Remember `value`; where the file cannot be written, for this run only, which is said once."""
        if self.get(key) == value:
            return
        self._known[key] = value
        line = f"{key}\t{value}".encode()
        with self._lock:
            try:
                self._append(b"%08x\t%b\n" % (zlib.crc32(line), line))
            except OSError as error:
                self._give_up(error)

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if self._file >= 0:
            os.write(self._file, line)

    def _give_up(self, error: OSError) -> None:
        self._file = -1
        print(f"{self.path}: digests are not remembered: {error.strerror}", file=sys.stderr)

    def _load(self) -> dict[str, str]:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError:
            return {}
        if sum(map(len, lines)) > MAX_BYTES:
            lines = self._shortened(lines)
        known = {}
        for line in lines:
            check, _, rest = line.partition(b"\t")
            if check == b"%08x" % zlib.crc32(rest) and rest:
                key, _, value = rest.decode().partition("\t")
                known[key] = value
        return known

    def _shortened(self, lines: list[bytes]) -> list[bytes]:
        kept = lines[len(lines) // 2 :]
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        temporary.write_bytes(b"\n".join(kept))
        temporary.replace(self.path)
        return kept


class Digests:
    """The sha256 of files, recomputed only if size, mtime, ctime or inode changed since they were last read."""

    def __init__(self, memo: Memo):
        self.memo = memo

    def file(self, path: Path) -> str:
        """The digest of the file at `path`, links followed; OSError if it cannot be read."""
        return self._of(path, path.stat())

    def is_known(self, path: Path) -> bool:
        """Whether `file` would answer without reading."""
        return self._remembered(path.stat()) is not None

    def remember(self, path: Path, digest: str) -> None:
        """Take `digest` as that of a file just published, which nobody writes to any more."""
        found = path.stat()
        self.memo.put(_place(found), _state(found) + digest)

    def is_intact(self, path: Path | str, entry: dict, found: os.stat_result | None = None) -> bool:
        """Whether `path` is a regular file with the size and the sha256 of a manifest's entry; `found` is its lstat."""
        try:
            found = found or Path(path).lstat()
            regular = stat.S_ISREG(found.st_mode) and found.st_size == entry["size"]
            return regular and self._of(path, found) == entry["sha256"]
        except OSError:
            return False

    def _of(self, path: Path | str, found: os.stat_result) -> str:
        known = self._remembered(found)
        if known is not None:
            return known
        began = time.time_ns()
        digest = hash_file(Path(path))
        settled = began - found.st_ctime_ns > _tick(found)
        if settled and _state(Path(path).stat()) == _state(found):
            self.memo.put(_place(found), _state(found) + digest)
        return digest

    def _remembered(self, found: os.stat_result) -> str | None:
        known, state = self.memo.get(_place(found)), _state(found)
        return known[len(state) :] if known is not None and known.startswith(state) else None


def files_under(root: Path) -> dict[str, os.stat_result]:
    """Every file below the directory `root` by its relative name, sorted.

    CacheError for what such a list cannot record: anything else than a file, and a folder without files.
    """
    found = {}
    waiting = [("", os.fspath(root))]
    while waiting:
        prefix, folder = waiting.pop()
        with os.scandir(folder) as listing:
            entries = list(listing)
        if prefix and not entries:
            raise CacheError.at(folder, "an empty directory", "remove it", SEE)
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append((f"{name}/", entry.path))
            elif entry.is_file(follow_symlinks=False):
                found[name] = entry.stat(follow_symlinks=False)
            else:
                raise CacheError.at(entry.path, "neither a file nor a directory", "remove it", SEE)
    return dict(sorted(found.items()))


def _place(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}"


def _state(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} "


def _tick(found: os.stat_result) -> int:
    return TICK if found.st_ctime_ns % 1_000_000_000 else COARSE

"""Locks that die with their process, and temporary folders that die with their lock.

flock directly, not through filelock: a waiting process reads the holder's pid out of the file, and the file goes away
with the lock, so nothing is left behind.
"""

import atexit
import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eulerstack.errors import CacheError
from eulerstack.graph.listing import listed

SEE = "docs/building.md#cache"
BUSY = (errno.EAGAIN, errno.EACCES)
PAUSE = 0.02  # seconds between two attempts of one who waits for all others to end


@contextmanager
def held(path: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file at `path`; if another has it, call `waiting(pid)` once and wait.

    CacheError where the file system knows no locks.
    """
    file = take(path)
    if file is None:
        waiting(_holder(path))
        file = take(path, wait=True)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


@contextmanager
def unless_held(path: Path) -> Iterator[bool]:
    """Hold the lock file at `path` as `held` does, without waiting: False where another has it."""
    file = take(path)
    try:
        yield file is not None
    finally:
        if file is not None:
            path.unlink(missing_ok=True)
            os.close(file)


@contextmanager
def among(path: Path) -> Iterator[None]:
    """Hold the lock file at `path` together with all others who say so, and not while one is `alone`. It stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _locked(file, path, wait=True, how=fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)


@contextmanager
def alone(path: Path, seconds: float) -> Iterator[bool]:
    """Hold the lock file at `path` with nobody `among` us: False where that could not be had in `seconds`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        until = time.monotonic() + seconds
        while not (had := _locked(file, path, wait=False)) and time.monotonic() < until:
            time.sleep(PAUSE)
        yield had
    finally:
        os.close(file)


@contextmanager
def in_use(paths: list[Path]) -> Iterator[None]:
    """Keep files that are there from being `free` until the block ends; nothing is written, and many may do so."""
    files = []
    try:
        for path in paths:
            with suppress(FileNotFoundError):
                files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                _locked(files[-1], path, wait=True, how=fcntl.LOCK_SH)
        yield
    finally:
        for file in files:
            os.close(file)


@contextmanager
def free(path: Path) -> Iterator[bool]:
    """Whether the file at `path` is there and nobody has it `in_use`; nobody can have it so inside the block."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _locked(file, path, wait=False)
    finally:
        os.close(file)


def living(folder: Path) -> list[str]:
    """The processes that hold the lock files in `folder`."""
    found = []
    for path in listed(folder, ".lock"):
        with free(path) as idle:
            if not idle and path.exists():
                found.append(_holder(path))
    return found


def take(path: Path, wait: bool = False) -> int | None:
    """An open file that holds the lock at `path`, with our pid in it; None if another has it and we do not `wait`."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue  # the folder was emptied and removed since
        if not _locked(file, path, wait):
            os.close(file)
            return None
        if _is_at(file, path):
            os.pwrite(file, b"%-8d" % os.getpid(), 0)
            return file
        os.close(file)  # released, and removed, between our open and our lock


def _locked(file: int, path: Path, wait: bool, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, how | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in BUSY:
            return False
        what = f"this file system gives no lock: {error.strerror}"
        raise CacheError.at(path, what, "move the cache to a local disk with EULERSTACK_CACHE", SEE) from None
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip() or "unknown"
    return "unknown"


class Scratch:
    """A folder below `root` for unfinished work, made when first needed and gone when the process ends.

    The next run removes that of a killed process (`sweep`).
    """

    def __init__(self, root: Path):
        self.root = root
        self._own: Path | None = None
        self._lock: int | None = None
        self._guard = threading.Lock()

    def folder(self) -> Path:
        """The folder of this process."""
        with self._guard:
            while self._own is None:
                own = self.root / f"{os.getpid()}-{os.urandom(4).hex()}"
                self._lock = take(own.with_suffix(".lock"))  # before the folder, so that none is ever without its lock
                if self._lock is not None:
                    own.mkdir()
                    self._own = own
                    atexit.register(self.close)
            return self._own

    @contextmanager
    def job(self) -> Iterator[Path]:
        """A new folder within, removed at the end of the block."""
        path = self.folder() / os.urandom(6).hex()
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def sweep(self) -> None:
        """Remove the folders of processes that no longer live."""
        for path in listed(self.root, ".lock"):
            if self._own is None or path != self._own.with_suffix(".lock"):
                file = take(path)
                if file is not None:
                    self._remove(path, file)

    def close(self) -> None:
        """Remove the folder of this process."""
        with self._guard:
            if self._own is not None:
                own, self._own = self._own, None
                self._remove(own.with_suffix(".lock"), self._lock)
        self.sweep()

    def _remove(self, lock: Path, file: int) -> None:
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        if not lock.with_suffix("").exists():
            lock.unlink(missing_ok=True)
        os.close(file)
        with suppress(OSError):
            self.root.rmdir()


def sweep(folder: Path) -> None:
    """Remove the lock files in `folder` that no living process holds."""
    for path in listed(folder, ".lock"):
        file = take(path)
        if file is not None:
            path.unlink(missing_ok=True)
            os.close(file)

"""Files and directories that appear whole or not at all.

Everything is written under a temporary name in the same folder, brought to the disk, and renamed. What a killed process
leaves behind is cleared away by the next one that writes to the same place.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from eulerstack.atomic import whole
from eulerstack.errors import ExportError

SEE = "docs/tutorials/04_compile_and_explain.md#compile-what-is-written"


@dataclass(frozen=True)
class FileRecord:
    """What a written file holds: the sha256 of its bytes, and how many they are."""

    sha256: str
    size: int


def write_bytes(path: Path, data: bytes) -> FileRecord:
    """Write `data` to the disk, under its final name, in a folder that is made if need be."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(hashlib.sha256(data).hexdigest(), len(data))


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to the disk, in place of any file at `path`, so that a reader sees the old bytes or the new ones."""
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as file:
        file.write(data)


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """An empty folder beside `target`, to be filled, that takes its place when the block ends without an error.

    A directory already at `target` goes when the new one is complete. Files written in the block must be on the disk
    by its end. Raises ExportError if another process is writing to the same target.
    """
    target = Path(target).absolute()
    partial, old = (target.with_name(f".{target.name}.{suffix}") for suffix in ("partial", "old"))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(partial, target):
        _recover(target, old)
        try:
            yield partial
            for folder in (partial, *filter(Path.is_dir, partial.rglob("*"))):
                sync_folder(folder)
            if target.exists():
                target.rename(old)
            partial.rename(target)
            sync_folder(target.parent)
        except BaseException:
            _recover(target, old)
            shutil.rmtree(partial, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(folder: Path, target: Path) -> Iterator[None]:
    """Make `folder`, or take over what a dead process left of it, and empty it; ours until the block ends."""
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = not folder.exists() or folder.stat().st_ino != os.fstat(handle).st_ino
        except BlockingIOError:
            taken = True
        if taken:
            what = "another process is writing this directory"
            raise ExportError.at(target, what, "wait for it, or choose another directory", SEE)
        for entry in folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        yield
    finally:
        os.close(handle)


def _recover(target: Path, old: Path) -> None:
    """Undo a swap that stopped half-way, or finish one that lacked only the removal of the old directory."""
    if old.exists():
        if target.exists():
            shutil.rmtree(old)
        else:
            old.rename(target)


def sync_folder(folder: Path) -> None:
    """Bring the names in `folder` to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(handle)
    finally:
        os.close(handle)


def explained(target: Path, error: OSError) -> ExportError:
    """The ExportError for what the system said while `target` was written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    fix = "free some space, or choose a directory on another disk" if full else "choose a directory you can write to"
    return ExportError.at(target, f"cannot be written: {error.strerror or error}", fix, SEE)

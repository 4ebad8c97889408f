"""Files that appear whole or not at all, and are made once even if several processes want them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the name `path` when the block ends, and none if it raises.

    For a single writer: what a killed one left is overwritten by the next.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def made_once(path: Path, make: Callable[[BinaryIO], object], sound: Callable[[Path], bool] = Path.is_file) -> Path:
    """`path`, written by `make(file)` unless it is there and `sound`; who comes meanwhile waits and reuses."""
    if sound(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if not sound(path):
            with whole(path) as file:
                make(file)
    return path

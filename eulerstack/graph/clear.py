"""Emptying a cache, and refusing to under the hands of a run."""

from pathlib import Path

from eulerstack.errors import CacheError
from eulerstack.graph import locks
from eulerstack.graph.collect import remove
from eulerstack.graph.inventory import FILES, PARTS

SEE = "docs/building.md#clear"
LOCK = "store.lock"


def clear(cache: Path) -> None:
    """Remove all that the project keeps below `cache`, results first; CacheError while a run is at work there.

    What else lies in the directory stays, and so does the lock, for somebody may be waiting for it.
    """
    refuse_if_at_work(cache)
    if not cache.is_dir():
        return
    with locks.alone(cache / LOCK, 0) as alone:
        if not alone:
            raise _at_work(cache, "another process")
        for name in (*PARTS, *FILES):
            if name != LOCK:
                remove(cache / name)


def refuse_if_at_work(cache: Path) -> None:
    """CacheError, with its process id, if a run has made or is making something in this cache."""
    holders = [pid for name in ("tmp", "locks") for pid in locks.living(cache / name)]
    if holders:
        raise _at_work(cache, f"process {holders[0]}")


def _at_work(cache: Path, who: str) -> CacheError:
    return CacheError.at(cache, f"{who} is at work in it", "wait until it has ended, or stop it", SEE)

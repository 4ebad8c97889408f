"""Making a cache smaller: results not used for long go first, then what no result names.

The order makes a kill at any moment harmless. A result is removed before what it names, so there never is one that
names what has gone; what is then named by nobody goes into a temporary folder at once and is deleted there, and the
next run sweeps what a killed one left of that.

It makes a run beside it harmless too. A result that is being made, restored or read is locked and stays. Objects and
trees are judged while no result is being put together.
"""

import shutil
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from filelock import FileLock, Timeout

from eulerstack.graph import locks
from eulerstack.graph.inventory import (
    Published,
    Result,
    Shard,
    objects,
    published,
    results,
    shards,
    sizes,
    trees,
    weight,
)
from eulerstack.graph.locks import Scratch

PATIENCE = 20.0  # seconds to wait for results that are being put together
CLOCKS = 3.0  # seconds by which the time of a new file may be before that of the process


@dataclass
class Collected:
    """What was removed, or would be; what stayed though it was too much; what the cache holds after."""

    removed: Counter = field(default_factory=Counter)
    freed: int = 0
    left: int = 0
    published: int = 0
    busy: int = 0
    unswept: bool = False


@dataclass(frozen=True)
class Wish:
    """How small the cache is to be, in bytes, and how many seconds something may lie unused; None: no matter."""

    max_size: int | None = None
    older_than: float | None = None
    published_too: bool = False
    dry: bool = False


class Collector:
    """One collection in the cache directory `cache` of a workspace that builds in `build`."""

    def __init__(self, cache: Path, build: Path, wish: Wish):
        self.cache = cache
        self.build = build
        self.wish = wish
        self.began = time.time()
        self.scratch = Scratch(cache / "tmp")
        self.found = results(cache)
        self.published = Published() if wish.published_too else published(build, cache)
        self.done = Collected()

    def run(self) -> Collected:
        before = sum(sizes(self.cache).values())
        if not self.wish.dry:
            self.scratch.sweep()
            locks.sweep(self.cache / "locks")
        doomed = self._doomed()
        for one in doomed:
            self._drop(one)
        self._sweep()
        self._age()
        self.done.left = before - self.done.freed if self.wish.dry else sum(sizes(self.cache).values())
        self.done.freed = before - self.done.left
        return self.done

    def _doomed(self) -> list[Result | Shard]:
        """Damaged and unfinished things, then what was not used for long, then the rest until the cache fits."""
        holding = Holding(self.found.values(), objects(self.cache))
        everything = [*self.found.values(), *shards(self.cache).values()]
        total = sum(sizes(self.cache).values()) - holding.orphaned
        doomed, rest = [], []
        for one in sorted(everything, key=lambda one: one.used):
            if self._is_kept(one):
                self.done.published += 1
            else:
                (doomed if self._is_old(one) else rest).append(one)
        total -= sum(map(holding.drop, doomed))
        for one in rest:
            if self.wish.max_size is None or total <= self.wish.max_size:
                break
            total -= holding.drop(one)
            doomed.append(one)
        self.done.freed = holding.freed + holding.orphaned
        return doomed

    def _is_kept(self, one: Result | Shard) -> bool:
        return isinstance(one, Result) and self.published.holds(one)

    def _is_old(self, one: Result | Shard) -> bool:
        useless = one.document is None if isinstance(one, Result) else not one.whole
        limit = self.wish.older_than
        return useless or (limit is not None and time.time() - one.used > limit)

    def _drop(self, one: Result | Shard) -> None:
        what = "results" if isinstance(one, Result) else "token shards"
        if self.wish.dry or (self._drop_result(one) if isinstance(one, Result) else _drop_shard(one)):
            self.done.removed[what] += 1
            self.found.pop(getattr(one, "path", None), None)
        else:
            self.done.busy += 1

    def _drop_result(self, one: Result) -> bool:
        """Whether nobody makes, restores or reads it, and none has since it was judged."""
        lock = self.cache / "locks" / f"{one.key_digest}.lock"
        with locks.unless_held(lock) as ours, locks.free(one.path) as idle:
            free = ours and idle and one.path.stat().st_mtime == one.used
            if free and not self.wish.published_too:
                free = not published(self.build, self.cache, since=self.began - CLOCKS).holds(one)
            if free:
                one.path.unlink()
            return free

    def _sweep(self) -> None:
        """Remove the objects and trees that no result names."""
        if self.wish.dry or not self.cache.is_dir():
            self._count(self._unnamed())
            return
        with locks.alone(self.cache / "store.lock", PATIENCE) as alone:
            if not alone:
                self.done.unswept = True
                return
            self.found = results(self.cache, self.found)  # and those made since
            unnamed = self._unnamed()
            for path in chain(*unnamed.values()):
                path.rename(self.scratch.folder() / path.name)
        self._count(unnamed)
        self.scratch.close()

    def _unnamed(self) -> dict[str, list[Path]]:
        named = set(chain.from_iterable(one.objects for one in self.found.values()))
        linked = self.published.trees.union(*(one.trees for one in self.found.values()))
        return {
            "trees": [path for digest, path in trees(self.cache).items() if digest not in linked],
            "objects": [path for sha256, path in objects(self.cache).items() if sha256 not in named],
        }

    def _count(self, unnamed: dict[str, list[Path]]) -> None:
        self.done.removed.update({what: len(paths) for what, paths in unnamed.items() if paths})

    def _age(self) -> None:
        """Remove what was set aside, and logs, longer ago than the limit."""
        limit = self.wish.older_than
        for what, pattern in (("damaged", "damaged/*"), ("logs", "logs/**/*.log")):
            for path in self.cache.glob(pattern) if limit is not None else ():
                if time.time() - path.lstat().st_ctime > limit:
                    self.done.removed[what] += 1
                    if self.wish.dry:
                        self.done.freed += weight(path)
                    else:
                        remove(path)


class Holding:
    """Which objects are named by whom, so that it can be said what the loss of a result frees."""

    def __init__(self, found: Iterable[Result], there: dict[str, Path]):
        self.named: Counter[str] = Counter()
        for one in found:
            self.named.update(one.objects.keys())
        self.there = there
        self.freed = 0
        self.orphaned = sum(path.lstat().st_size for sha256, path in there.items() if sha256 not in self.named)

    def drop(self, one: Result | Shard) -> int:
        """The bytes that go with it, now that it is the next to go."""
        freed = one.size
        for sha256, size in one.objects.items() if isinstance(one, Result) else ():
            self.named[sha256] -= 1
            freed += size if not self.named[sha256] and sha256 in self.there else 0
        self.freed += freed
        return freed


def _drop_shard(one: Shard) -> bool:
    """Whether nobody writes it. The facts go first: tokens without them are as good as none."""
    try:
        with FileLock(one.lock, timeout=0):
            for path in sorted(one.files, key=lambda path: path.suffix != ".json"):
                path.unlink(missing_ok=True)
            return True
    except Timeout:
        return False


def remove(path: Path) -> None:
    """A file or a directory with all in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

"""Every byte of a cache read again, whatever is remembered of it, and held against the name it is kept under."""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eulerstack.digest import digest_of, files_under, hash_file
from eulerstack.errors import CacheError
from eulerstack.graph import locks
from eulerstack.graph.inventory import Result, objects, results, trees

THREADS = min(4, os.cpu_count() or 1)
PATIENCE = 60.0  # seconds to wait for results that are being put together


@dataclass(frozen=True)
class Damage:
    """A part of the cache that is not what its name says."""

    path: Path
    what: str


@dataclass(frozen=True)
class Verified:
    """How much was read, and what is damaged, sorted."""

    results: int
    objects: int
    trees: int
    size: int
    damaged: list[Damage]


def verify(cache: Path) -> Verified:
    """Objects against their hashes, trees against their manifests, results against their seals, keys and objects."""
    known = Hashes()
    kept = results(cache)  # before the objects: what these name was there before them
    here = objects(cache)
    with ThreadPoolExecutor(THREADS) as pool:
        hashed = dict(zip(here, pool.map(known, here.values()), strict=True))
    bad = [Damage(here[sha256], _not_its_name(found)) for sha256, found in hashed.items() if found not in (sha256, "")]
    stand = trees(cache)
    for digest, path in stand.items():
        if (found := _tree(path, known)) not in (digest, ""):
            bad.append(Damage(path, _not_its_name(found)))
    for one in kept.values():
        bad += _result(one, here)
    return Verified(len(kept), len(here), len(stand), known.size, sorted(bad, key=lambda damage: str(damage.path)))


def set_aside(cache: Path, damaged: list[Damage]) -> list[tuple[Path, Path]]:
    """Move what is damaged to `damaged/`, from where nothing is taken: pairs of old and new place.

    What is then missing is made again when it is asked for.
    """
    moved = []
    with locks.alone(cache / "store.lock", PATIENCE) as alone:
        if not alone:
            fix = "run it again when the runs that write to the cache have ended"
            raise CacheError.at(cache, "results are being written without a pause", fix, "docs/building.md#verify")
        (cache / "damaged").mkdir(exist_ok=True)
        for damage in damaged:
            target = cache / "damaged" / f"{damage.path.name}.{os.urandom(3).hex()}"
            with suppress(FileNotFoundError):
                shutil.move(damage.path, target)
                moved.append((damage.path, target))
    return moved


class Hashes:
    """sha256 by path, each file read once however many names it has; "" for one that went meanwhile."""

    def __init__(self, read: Callable[[Path], str] = hash_file):
        self.read = read
        self.known: dict[tuple, str] = {}
        self.size = 0

    def __call__(self, path: Path) -> str:
        try:
            facts = path.lstat()
            place = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
            if place not in self.known:
                self.known[place] = self.read(path)
                self.size += facts.st_size
        except FileNotFoundError:
            return ""
        return self.known[place]


def _tree(path: Path, known: Hashes) -> str:
    try:
        there = files_under(path)
    except FileNotFoundError:
        return ""
    except (NotADirectoryError, CacheError) as error:
        return f"no tree: {error}".partition("\n")[0]
    return digest_of({name: {"sha256": known(path / name), "size": facts.st_size} for name, facts in there.items()})


def _result(one: Result, here: dict[str, Path]) -> Iterator[Damage]:
    if one.document is None:
        yield Damage(one.path, "not what was written there")
    # one that was removed meanwhile takes its objects with it
    elif (lost := sorted(one.objects.keys() - here.keys())) and one.path.exists():
        yield Damage(one.path, f"names {len(lost)} objects that are not there, {lost[0][:12]} first")


def _not_its_name(found: str) -> str:
    return found if found.startswith("no tree") else f"its content is {found[:12]}"

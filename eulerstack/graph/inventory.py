"""What a cache holds, and how much of it: results, the objects and trees they name, token shards, and the rest."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eulerstack.digest import digest_of
from eulerstack.graph import stamp
from eulerstack.graph.listing import listed
from eulerstack.graph.store import trees_of

# All that the project writes below its cache; nothing else there is ever counted or removed.
PARTS = ("results", "objects", "trees", "tokens", "tokenizers", "corpus", "logs", "damaged", "tmp", "locks")
FILES = ("digests", "store.lock")


@dataclass(frozen=True)
class Result:
    """The file of a result; `document` is None if it is damaged."""

    path: Path
    document: dict | None
    used: float
    size: int

    @property
    def key_digest(self) -> str:
        return self.path.stem

    @property
    def stage(self) -> str:
        return self.document["key"]["stage"] if self.document else "damaged"

    @property
    def objects(self) -> dict[str, int]:
        """sha256 -> size of what it names."""
        outputs = self.document["outputs"] if self.document else {}
        return {entry["sha256"]: entry["size"] for entry in outputs.values()}

    @property
    def trees(self) -> set[str]:
        return {digest_of(files) for files in trees_of(self.document["outputs"]).values()} if self.document else set()


@dataclass
class Shard:
    """The files in `tokens/` that belong to one source of text. It is whole when its `.json` is there."""

    lock: Path
    files: list[Path] = field(default_factory=list)
    used: float = 0
    size: int = 0

    @property
    def whole(self) -> bool:
        return any(path.suffix == ".json" and not path.name.startswith(".") for path in self.files)


def results(cache: Path, known: dict[Path, Result] | None = None) -> dict[Path, Result]:
    """Every result by its path; those in `known` are not read again. OSError if one cannot be read.

    For then nobody can say what it names.
    """
    found = {}
    for path in listed(cache / "results", ".json"):
        try:
            found[path] = (known or {}).get(path) or _result(path)
        except FileNotFoundError:
            continue  # removed since
    return found


def _result(path: Path) -> Result:
    document = stamp.unsealed(path.read_bytes())
    facts = path.stat()
    sound = document is not None and digest_of(document["key"]) == path.stem
    return Result(path, document if sound else None, facts.st_mtime, facts.st_size)


def objects(cache: Path) -> dict[str, Path]:
    """Every object by its sha256."""
    return {path.name: path for folder in listed(cache / "objects") for path in listed(folder)}


def trees(cache: Path) -> dict[str, Path]:
    """Every tree by the digest of its manifest."""
    return {path.name: path for path in listed(cache / "trees")}


def shards(cache: Path) -> dict[str, Shard]:
    """Token shards by key, and what is left of ones that were never finished."""
    found: dict[str, Shard] = {}
    folder = cache / "tokens"
    for path in listed(folder):
        key = path.name.lstrip(".").partition(".")[0]
        shard = found.setdefault(key, Shard(folder / f".{key}.json.lock"))
        if path.suffix != ".lock":
            facts = path.stat()
            shard.files.append(path)
            shard.used = max(shard.used, facts.st_mtime, facts.st_atime)  # it is read by others than us
            shard.size += facts.st_size
    return {key: shard for key, shard in found.items() if shard.files}


def sizes(cache: Path) -> dict[str, int]:
    """Bytes by part. A file with several names counts once, where it is first: objects before the trees of them."""
    seen: set[tuple[int, int]] = set()
    found = {part: sum(_fresh(cache / part, seen)) for part in PARTS}
    found["other"] = sum(path.lstat().st_size for path in map(cache.joinpath, FILES) if path.exists())
    return found


def weight(path: Path) -> int:
    """The bytes of a file, or of all files below a directory."""
    return sum(_fresh(path, set())) if path.is_dir() else path.lstat().st_size


def _fresh(root: Path, seen: set[tuple[int, int]]) -> Iterator[int]:
    """The sizes of the files below `root` that were not `seen`."""
    waiting = [root] if root.is_dir() else []
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            elif (facts := _facts(entry)) and (facts.st_dev, facts.st_ino) not in seen:
                seen.add((facts.st_dev, facts.st_ino))
                yield facts.st_size


def _facts(entry: os.DirEntry) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class Published:
    """What the build folder of this workspace stands on: digests of keys, and of trees."""

    keys: frozenset[str] = frozenset()
    trees: frozenset[str] = frozenset()

    def holds(self, result: Result) -> bool:
        return result.key_digest in self.keys or bool(result.trees & self.trees)


def published(build: Path, cache: Path, since: float = 0) -> Published:
    """By its stamps and its links, of those only that are not older than `since`."""
    presets = listed(build)
    stamps = [path for own in presets for path in listed(own / ".stamps", ".json") if _is_since(path, since)]
    written = filter(None, map(stamp.read, stamps))
    keys = frozenset(digest_of(document["key"]) for document in written)
    outputs = [path for own in presets for path in listed(own)]
    links = [path.resolve() for path in outputs if path.is_symlink() and _is_since(path, since)]
    home = (cache / "trees").resolve()
    return Published(keys, frozenset(path.name for path in links if path.parent == home))


def _is_since(path: Path, since: float) -> bool:
    try:
        return path.lstat().st_mtime >= since
    except FileNotFoundError:
        return False

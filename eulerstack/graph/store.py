"""Results by key: what a stage made is kept under the digest of its key, and coming back to a key restores it.

    <cache>/results/<key digest>.json   a stamp (stamp.py): the whole key, and the outputs as file -> sha256, size
    <cache>/objects/<aa>/<sha256>       file contents, read-only
    <cache>/trees/<digest>/             a directory output, its files hard links to objects
    <cache>/damaged/                    what was found to differ from its digest, set aside
    <cache>/store.lock                  held while a result is put together, so that no part of it is collected

In `build/<preset>/` a file is a copy, so editing it harms nothing here, and a directory is a link to its tree. Nothing
under a digest is ever written twice, and every use checks it. When a result was last of use is the time of its file.
"""

import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from eulerstack.digest import SEE, Digests, digest_of, files_under, hash_file
from eulerstack.errors import CacheError
from eulerstack.graph import locks, stamp
from eulerstack.graph.locks import Scratch

DAY = 86_400


class Store:
    """The results under the directory `cache`; `say` tells the user of damage found."""

    def __init__(self, cache: Path, digests: Digests, scratch: Scratch, say: Callable[[str], None]):
        self.cache = cache
        self.digests = digests
        self.scratch = scratch
        self.say = say

    def result(self, key_digest: str) -> Path:
        return self.cache / "results" / f"{key_digest}.json"

    def object(self, sha256: str) -> Path:
        return self.cache / "objects" / sha256[:2] / sha256

    def tree(self, files: dict[str, dict]) -> Path:
        """Where the directory with this manifest lies."""
        return self.cache / "trees" / digest_of(files)

    @property
    def lock(self) -> Path:
        return self.cache / "store.lock"

    def find(self, key_digest: str) -> dict | None:
        """The sound result kept under a key, or None; damaged parts are set aside, so that the work is done again."""
        path = self.result(key_digest)
        found = stamp.read(path)
        if found is None:
            self._set_aside(path)
            return None
        broken = [entry["sha256"] for entry in found["outputs"].values() if not self._has(entry)]
        for sha256 in broken:
            self._set_aside(self.object(sha256))
        if broken:
            path.unlink(missing_ok=True)
            return None
        with suppress(OSError):  # a cache that cannot be written to, or a result that went: neither matters here
            if abs(time.time() - path.stat().st_mtime) > DAY:
                os.utime(path)
        return found

    def keep(self, document: dict, out: Path, known: dict[str, str]) -> dict:
        """Take over the files in `out`, which goes, as the result of `document["key"]`; the whole document comes back.

        `known` are digests the writer has computed itself. If the key has a result already, the outputs must be the
        same: CacheError otherwise, for then a stage is not a function of its key.
        """
        with locks.among(self.lock):
            return self._keep(document, out, known)

    def _keep(self, document: dict, out: Path, known: dict[str, str]) -> dict:
        outputs = {}
        for name in files_under(out):
            outputs[name] = self._adopt(out / name, known.get(name))
        document = document | {"outputs": outputs}
        for files in trees_of(outputs).values():
            self._materialise(files)
        path = self.result(digest_of(document["key"]))
        earlier = stamp.read(path)
        if earlier is None:
            stamp.write(path, document, self.scratch.folder())
        elif changed := stamp.differences(earlier["outputs"], outputs):
            raise CacheError.at(
                changed[0].rpartition(".")[0],
                "the same key gave other bytes than before",
                "make the stage deterministic, or put what differs into its key",
                SEE,
            )
        return document

    def publish(self, outputs: dict, build: Path, scratch: Scratch) -> None:
        """Let `build` hold the outputs of a result that was found or kept just now: each appears at once.

        FileNotFoundError if a part of it has gone or was written to since.
        """
        build.mkdir(parents=True, exist_ok=True)
        temporary = scratch.folder()
        for name, entry in outputs.items():
            if "/" not in name and not self.digests.is_intact(build / name, entry):
                stamp.place(self._content(entry["sha256"]), self._free(build / name), temporary)
                self.digests.remember(build / name, entry["sha256"])
        for name, files in trees_of(outputs).items():
            tree = self._materialise(files)
            if not self.is_link_to(build / name, tree):
                link = temporary / f"{name}.{os.urandom(6).hex()}"
                link.symlink_to(os.path.relpath(tree, build))
                link.replace(self._free(build / name, link=True))

    def is_published(self, outputs: dict, build: Path) -> bool:
        """Whether `build` holds exactly these outputs."""
        files = {name: entry for name, entry in outputs.items() if "/" not in name}
        trees = trees_of(outputs)
        return all(self.digests.is_intact(build / name, entry) for name, entry in files.items()) and all(
            self.is_link_to(build / name, self.tree(files)) and self._is_tree(self.tree(files), files)
            for name, files in trees.items()
        )

    def _content(self, sha256: str) -> bytes:
        path = self.object(sha256)
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise self._lost(path)
        return data

    def _lost(self, path: Path) -> FileNotFoundError:
        self._set_aside(path)
        return FileNotFoundError(errno.ENOENT, "changed while it was in use", str(path))

    def _has(self, entry: dict) -> bool:
        return self.digests.is_intact(self.object(entry["sha256"]), entry)

    def _adopt(self, path: Path, known: str | None) -> dict:
        """Make the file an object, or a link to the equal one there is."""
        with path.open("rb") as file:
            os.fsync(file.fileno())
        entry = {"sha256": known or hash_file(path), "size": path.stat().st_size}
        target = self.object(entry["sha256"])
        target.parent.mkdir(parents=True, exist_ok=True)
        path.chmod(0o444)
        if target.exists() and not self._has(entry):
            self._set_aside(target)
        with suppress(FileExistsError):
            os.link(path, target)
            self.digests.remember(target, entry["sha256"])
        return entry

    def _materialise(self, files: dict[str, dict]) -> Path:
        """The directory with this manifest, made of links to objects unless it is there."""
        tree = self.tree(files)
        if self._is_tree(tree, files):
            return tree
        self._set_aside(tree)
        temporary = self.scratch.folder() / f"tree-{os.urandom(6).hex()}"
        for name, entry in files.items():
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self._link(entry, target)
        tree.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.rename(tree)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise  # otherwise another process was first
            shutil.rmtree(temporary)
        return tree

    def _link(self, entry: dict, target: Path) -> None:
        """Give an object another name. That changes its ctime, so its digest is remembered anew: but not where somebody
        wrote to it meanwhile, by another of its names."""
        source = self.object(entry["sha256"])
        before = source.lstat()
        if not self.digests.is_intact(source, entry, before):
            raise self._lost(source)
        os.link(source, target)
        after = target.lstat()
        if (before.st_ino, before.st_size, before.st_mtime_ns) == (after.st_ino, after.st_size, after.st_mtime_ns):
            self.digests.remember(target, entry["sha256"])

    def _is_tree(self, tree: Path, files: dict[str, dict]) -> bool:
        try:
            found = files_under(tree)
        except (OSError, CacheError):
            return False
        return found.keys() == files.keys() and all(
            self.digests.is_intact(f"{tree}/{name}", entry, found[name]) for name, entry in files.items()
        )

    def is_link_to(self, path: Path, tree: Path) -> bool:
        """Whether `path` is our link to `tree`."""
        try:
            return path.readlink() == Path(os.path.relpath(tree, path.parent))
        except OSError:
            return False

    def _free(self, path: Path, link: bool = False) -> Path:
        """`path`, after whatever cannot be replaced by a rename there is out of the way."""
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) or (link and not stat.S_ISLNK(mode)):
                self._set_aside(path)
        return path

    def _set_aside(self, path: Path) -> None:
        if not os.path.lexists(path):
            return
        target = self.cache / "damaged" / f"{path.name}.{os.urandom(3).hex()}"
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process was first
            shutil.move(path, target)
            self.say(f"{path} is not what was written there; it is now {target}")


def trees_of(outputs: dict[str, dict]) -> dict[str, dict]:
    """The outputs that are directories: name -> manifest of what is below it."""
    trees: dict[str, dict] = {}
    for name, entry in outputs.items():
        top, slash, rest = name.partition("/")
        if slash:
            trees.setdefault(top, {})[rest] = entry
    return trees

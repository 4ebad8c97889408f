"""The store gives back what was put in, or nothing."""

import os
import shutil
from pathlib import Path

import pytest

from eulerstack.digest import Digests, Memo, digest_of, hash_file
from eulerstack.errors import CacheError
from eulerstack.graph import stamp
from eulerstack.graph.locks import Scratch
from eulerstack.graph.store import Store, trees_of

KEY = {"stage": "export", "inputs": {"ir": "1"}}
DIGEST = digest_of(KEY)
FILES = {"report.json": b"{}", "hf/config.json": b"config", "hf/deep/model.bin": b"weights"}


class Place:
    """A store, a build folder, and what the store said."""

    def __init__(self, root: Path):
        self.root = root
        self.build = root / "build" / "one"
        self.build_scratch = Scratch(root / "build" / ".tmp")
        self.said: list[str] = []
        self.reopen()

    def reopen(self) -> None:
        cache = self.root / "cache"
        self.store = Store(cache, Digests(Memo(cache / "digests")), Scratch(cache / "tmp"), self.said.append)

    def out(self, files: dict[str, bytes]) -> Path:
        folder = self.root / "out"
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

    def keep(self, files: dict[str, bytes] = FILES, key: dict = KEY, known: dict | None = None) -> dict:
        return self.store.keep({"key": key, "note": "", "summary": ""}, self.out(files), known or {})

    def publish(self, found: dict) -> dict[str, bytes]:
        self.store.publish(found["outputs"], self.build, self.build_scratch)
        return self.built()

    def built(self) -> dict[str, bytes]:
        found = {}
        for folder, _, names in os.walk(self.build, followlinks=True):
            for name in names:
                path = Path(folder, name)
                found[path.relative_to(self.build).as_posix()] = path.read_bytes()
        return found


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_what_is_kept_is_found_and_published(place):
    kept = place.keep()
    place.reopen()
    assert place.store.find(DIGEST) == kept
    assert place.publish(kept) == FILES
    assert place.store.is_published(kept["outputs"], place.build)
    assert place.said == []


def test_an_unknown_key_is_not_found(place):
    assert place.store.find("0" * 64) is None


def test_a_directory_is_a_relative_link_into_the_store_with_read_only_files(place):
    place.publish(place.keep())
    link = place.build / "hf"
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert (link / "deep" / "model.bin").stat().st_mode & 0o222 == 0


def test_equal_contents_are_stored_once(place):
    place.keep()
    place.keep({"report.json": b"weights", "hf/config.json": b"config"}, KEY | {"stage": "other"})
    objects = [path for path in (place.root / "cache" / "objects").rglob("*") if path.is_file()]
    assert len(objects) == 3


def test_a_published_file_can_be_edited_without_harm_to_the_store(place):
    kept = place.keep()
    place.publish(kept)
    (place.build / "report.json").write_bytes(b"edited")
    assert not place.store.is_published(kept["outputs"], place.build)
    assert place.store.find(DIGEST) == kept
    assert place.publish(kept) == FILES


def edit(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"WEIGHTS")


@pytest.mark.parametrize(
    "harm",
    [
        lambda hf: edit(hf / "deep" / "model.bin"),
        lambda hf: os.truncate(hf / "deep" / "model.bin", 0),
        lambda hf: (hf / "deep" / "model.bin").unlink(),
        lambda hf: (hf / "__pycache__").mkdir() or (hf / "__pycache__" / "extra.pyc").touch(),
        lambda hf: (hf / "deep" / "empty").mkdir(),
        lambda hf: (hf / "config.json").rename(hf / "renamed.json"),
        lambda hf: (hf / "link").symlink_to("config.json"),
    ],
    ids=["edit", "truncate", "delete", "extra", "empty folder", "rename", "link"],
)
def test_harm_to_a_directory_is_seen_and_undone(place, harm):
    kept = place.keep()
    place.publish(kept)
    harm(place.build / "hf")
    assert not place.store.is_published(kept["outputs"], place.build)
    found = place.store.find(DIGEST) or place.keep()
    assert place.publish(found) == FILES
    assert place.store.is_published(found["outputs"], place.build)
    assert "is not what was written there" in place.said[0]


@pytest.mark.parametrize("name", ["report.json", "hf"])
@pytest.mark.parametrize("kind", ["file", "directory", "dangling link"])
def test_whatever_is_in_the_way_is_replaced(place, name, kind):
    place.build.mkdir(parents=True)
    target = place.build / name
    if kind == "file":
        target.write_text("mine")
    elif kind == "directory":
        (target / "sub").mkdir(parents=True)
    else:
        target.symlink_to("nowhere")
    assert place.publish(place.keep()) == FILES


def test_a_damaged_object_is_set_aside_and_made_again(place):
    kept = place.keep()
    target = place.store.object(kept["outputs"]["report.json"]["sha256"])
    target.chmod(0o644)
    target.write_bytes(b"[]")
    assert place.store.find(DIGEST) is None
    assert place.said == [place.said[0]]
    assert "/damaged/" in place.said[0]
    assert place.publish(place.keep()) == FILES


def test_a_damaged_result_is_set_aside(place):
    kept = place.keep()
    path = place.store.result(DIGEST)
    path.write_bytes(path.read_bytes().replace(b"summary", b"summarz"))
    assert place.store.find(DIGEST) is None
    assert not path.exists()
    assert place.keep() == kept


def test_a_second_writing_of_the_same_changes_nothing(place):
    kept = place.keep()
    inode = place.store.object(kept["outputs"]["report.json"]["sha256"]).stat().st_ino
    assert place.keep() == kept
    assert place.store.object(kept["outputs"]["report.json"]["sha256"]).stat().st_ino == inode


def test_other_bytes_under_the_same_key_are_refused(place):
    kept = place.keep()
    with pytest.raises(CacheError, match=r"hf/config.json.*the same key gave other bytes"):
        place.keep(FILES | {"hf/config.json": b"another"})
    assert place.store.find(DIGEST) == kept


def test_digests_that_the_writer_knows_are_not_computed_again(place, monkeypatch):
    read = []
    monkeypatch.setattr("eulerstack.graph.store.hash_file", lambda path: read.append(path.name) or hash_file(path))
    out = place.out(FILES)
    place.keep(known={"hf/deep/model.bin": hash_file(out / "hf/deep/model.bin")})
    assert sorted(read) == ["config.json", "report.json"]


def test_an_empty_folder_in_an_output_is_refused(place):
    """It could not be restored."""
    out = place.out(FILES)
    (out / "hf" / "empty").mkdir()
    with pytest.raises(CacheError, match="an empty directory"):
        place.store.keep({"key": KEY}, out, {})


def test_a_link_in_an_output_is_refused(place):
    out = place.out(FILES)
    (out / "hf" / "link").symlink_to("config.json")
    with pytest.raises(CacheError, match="neither a file nor a directory"):
        place.store.keep({"key": KEY, "note": "", "summary": ""}, out, {})


def test_a_result_is_the_stamp(place):
    assert stamp.read(place.store.result(DIGEST)) is None
    assert place.keep() == stamp.read(place.store.result(DIGEST))


def test_trees_are_outputs_with_a_slash():
    entry = {"sha256": "0", "size": 0}
    assert trees_of({"a.json": entry, "hf/x": entry, "hf/d/y": entry}) == {"hf": {"x": entry, "d/y": entry}}

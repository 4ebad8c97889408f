"""Verification reads every byte, whatever is remembered, and names what is not as its name says."""

import os
from pathlib import Path

import pytest

from eulerstack.digest import Digests, Memo, digest_of
from eulerstack.graph import locks
from eulerstack.graph.locks import Scratch
from eulerstack.graph.store import Store
from eulerstack.graph.verify import Damage, Hashes, set_aside, verify

KEY = {"stage": "export"}


@pytest.fixture
def store(tmp_path):
    cache = tmp_path / "cache"
    found = Store(cache, Digests(Memo(cache / "digests")), Scratch(cache / "tmp"), lambda text: None)
    (tmp_path / "out/hf").mkdir(parents=True)
    (tmp_path / "out/report.json").write_text("{}")
    (tmp_path / "out/hf/model.bin").write_text("weights")
    found.keep({"key": KEY, "note": "", "summary": ""}, tmp_path / "out", {})
    return found


def weights(store: Store) -> Path:
    (found,) = (path for path in store.cache.glob("objects/*/*") if path.read_text() == "weights")
    return found


def rot(path: Path) -> None:
    """Other content that no time and no size tells of: what is remembered of the file says that it is sound."""
    path.chmod(0o644)
    path.write_text("WEIGHTS")
    Digests(Memo(path.parents[2] / "digests")).remember(path, path.name)


def test_a_sound_cache_is_sound(store):
    found = verify(store.cache)
    assert (found.results, found.objects, found.trees, found.size) == (1, 2, 1, len("{}") + len("weights"))
    assert found.damaged == []


def test_an_empty_one_too(tmp_path):
    assert verify(tmp_path / "nowhere").damaged == []


def test_what_the_memory_of_digests_hides_is_found_in_object_and_tree(store):
    rot(weights(store))
    digests = Digests(Memo(store.cache / "digests"))
    assert Store(store.cache, digests, store.scratch, pytest.fail).find(digest_of(KEY))  # the memory is fooled
    found = verify(store.cache)
    assert {damage.path.parent.name for damage in found.damaged} == {weights_folder(store), "trees"}
    assert all(damage.what.startswith("its content is ") for damage in found.damaged)


def weights_folder(store: Store) -> str:
    return next(path.parent.name for path in store.cache.glob("objects/*/*") if path.read_text() == "WEIGHTS")


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda tree: (tree / "new").touch(), "its content is"),
        (lambda tree: (tree / "model.bin").unlink(), "its content is"),
        (lambda tree: (tree / "empty").mkdir(), "no tree"),
        (lambda tree: (tree / "link").symlink_to("model.bin"), "no tree"),
    ],
)
def test_a_tree_that_is_not_its_manifest_is_named(store, harm, what):
    (tree,) = (store.cache / "trees").iterdir()
    harm(tree)
    (damage,) = verify(store.cache).damaged
    assert damage.path == tree
    assert damage.what.startswith(what)


def test_results_are_named_for_their_seal_their_key_and_what_they_name(store):
    (path,) = (store.cache / "results").iterdir()
    other = path.with_name(f"{'0' * 64}.json")
    other.write_bytes(path.read_bytes())
    assert verify(store.cache).damaged == [Damage(other, "not what was written there")]
    other.unlink()
    weights(store).unlink()
    (damage,) = verify(store.cache).damaged
    assert damage.path == path
    assert damage.what.startswith("names 1 objects that are not there, ")


def test_what_is_set_aside_is_made_again(store, tmp_path):
    rot(weights(store))
    damaged = verify(store.cache).damaged
    moved = set_aside(store.cache, damaged)
    assert [old for old, _ in moved] == [damage.path for damage in damaged]
    assert all(new.exists() and not old.exists() for old, new in moved)
    assert store.find(digest_of(KEY)) is None
    (tmp_path / "out2/hf").mkdir(parents=True)
    (tmp_path / "out2/report.json").write_text("{}")
    (tmp_path / "out2/hf/model.bin").write_text("weights")
    store.keep({"key": KEY, "note": "", "summary": ""}, tmp_path / "out2", {})
    assert verify(store.cache).damaged == []


def test_nothing_is_set_aside_under_a_result_that_is_put_together(store, monkeypatch):
    from eulerstack.errors import CacheError

    monkeypatch.setattr("eulerstack.graph.verify.PATIENCE", 0.05)
    with locks.among(store.lock), pytest.raises(CacheError, match="without a pause"):
        set_aside(store.cache, [Damage(weights(store), "!")])
    assert weights(store).exists()


def test_a_file_with_several_names_is_read_once(tmp_path):
    read = []
    (tmp_path / "a").write_text("x")
    os.link(tmp_path / "a", tmp_path / "b")
    hashes = Hashes(lambda path: read.append(path.name) or "digest")
    assert [hashes(tmp_path / name) for name in ("a", "b", "gone")] == ["digest", "digest", ""]
    assert read == ["a"]

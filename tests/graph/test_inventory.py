"""What a cache holds, counted."""

import os

from eulerstack.graph.inventory import Published, published, shards, sizes, weight


def test_a_file_with_several_names_counts_once_as_an_object(tmp_path):
    for name in ("objects/ab/abc", "logs/x.log", "damaged/whole/part", "digests"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    for name in ("trees/t/a", "trees/t/deep/b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(tmp_path / "objects/ab/abc", tmp_path / name)
    found = sizes(tmp_path)
    assert {part: size for part, size in found.items() if size} == {"objects": 5, "logs": 5, "damaged": 5, "other": 5}
    assert weight(tmp_path / "damaged/whole") == weight(tmp_path / "logs/x.log") == 5


def test_foreign_files_are_not_ours(tmp_path):
    (tmp_path / "mine.bin").write_bytes(b"12345")
    assert sum(sizes(tmp_path).values()) == 0
    assert sum(sizes(tmp_path / "nowhere").values()) == 0


def test_a_shard_is_its_files_and_whole_with_its_facts(tmp_path):
    (tmp_path / "tokens").mkdir()
    for name in ("a.json", "a.npy", ".a.json.lock", "b.npy", ".b.json.tmp", ".c.json.lock"):
        (tmp_path / "tokens" / name).write_bytes(b"123")
    found = shards(tmp_path)
    assert {key: (shard.whole, shard.size) for key, shard in found.items()} == {"a": (True, 6), "b": (False, 6)}


def test_only_links_into_the_trees_count(tmp_path):
    (tmp_path / "cache/trees/t").mkdir(parents=True)
    (tmp_path / "build/one").mkdir(parents=True)
    (tmp_path / "build/one/hf").symlink_to("../../cache/trees/t")
    (tmp_path / "build/one/mine").symlink_to("/tmp")
    assert published(tmp_path / "build", tmp_path / "cache") == Published(frozenset(), frozenset({"t"}))
    later = (tmp_path / "build/one/hf").lstat().st_mtime + 1
    assert published(tmp_path / "build", tmp_path / "cache", since=later) == Published()

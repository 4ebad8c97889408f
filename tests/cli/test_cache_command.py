"""`eulerstack cache`: stats, gc, verify, clear."""

import json
import os
import time

import pytest

from eulerstack.digest import Digests, Memo, digest_of
from eulerstack.graph import locks
from eulerstack.graph.locks import Scratch
from eulerstack.graph.store import Store


@pytest.fixture
def cache(own):
    """The cache of the workspace, with two results of 1,000 bytes and more, one 40 days old."""
    folder = own / "cache"
    scratch = Scratch(folder / "tmp")
    store = Store(folder, Digests(Memo(folder / "digests")), scratch, pytest.fail)
    for name, days in (("old", 40), ("new", 0)):
        (own / name / "hf").mkdir(parents=True)
        (own / name / "hf" / "model.bin").write_text(name * 400)
        key = {"stage": "export", "name": name}
        store.keep({"key": key, "note": "", "summary": ""}, own / name, {})
        then = time.time() - days * 86_400
        os.utime(store.result(digest_of(key)), (then, then))
    scratch.close()
    return folder


def test_stats_counts(run, cache):
    figures = json.loads(run("cache", "stats", "--json").out)
    assert figures["cache"] == str(cache)
    assert figures["counts"] == {"results": 2, "objects": 2, "trees": 2, "tokens": 0, "damaged": 0, "logs": 0}
    assert figures["stages"] == {"export": {"results": 2, "bytes": 2400}}
    assert figures["bytes"]["objects"] == 2400
    assert figures["bytes"]["trees"] == 0
    assert figures["bytes"]["total"] == sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) - 2400
    shown = run("cache", "stats").out.splitlines()
    assert ["export", "2", "2.344", "KiB"] in [line.split() for line in shown]
    assert "build/ stands on 0 results, 0 B" in shown


def test_gc_by_age_and_by_size(run, cache):
    said = run("cache", "gc", "--older-than", "30d", "--dry-run")
    assert said.out.startswith("would remove 1 objects, 1 results, 1 trees: ")
    assert len(list(cache.glob("results/*"))) == 2
    said = run("cache", "gc", "--older-than", "30d")
    assert said.out.startswith("removed 1 objects, 1 results, 1 trees: ")
    assert len(list(cache.glob("results/*"))) == 1
    assert run("cache", "gc", "--max-size", "1G").out.startswith("removed nothing: 0 B; ")
    assert "1 results" in run("cache", "gc", "--max-size", "1K").out
    assert list(cache.glob("objects/*/*")) == []


def test_gc_says_what_stayed(run, own, cache):
    (path,) = (path for path in cache.glob("results/*") if b'"name":"old"' in path.read_bytes())
    (own / "build/old/.stamps").mkdir(parents=True)
    (own / "build/old/.stamps/export.json").write_bytes(path.read_bytes())
    (other,) = (one for one in cache.glob("results/*") if one != path)
    with locks.in_use([other]):
        said = run("cache", "gc", "--max-size", "0").out.splitlines()
    assert said[1:] == [
        "that is more than 0 B; build/ stands on 1 results (--published)",
        "1 in use or being made stayed",
    ]
    run("cache", "gc", "--max-size", "0", "--published")
    assert list(cache.glob("results/*")) == []


@pytest.mark.parametrize("arguments", [("--max-size", "10X"), ("--max-size", "-1"), ("--older-than", "30"), ("more",)])
def test_gc_refuses_what_it_cannot_read(run, cache, arguments):
    assert run("cache", "gc", *arguments).status == 2
    assert len(list(cache.glob("results/*"))) == 2


@pytest.mark.parametrize(("text", "size"), [("500", 500), ("1K", 1024), ("1.5kB", 1536), ("10GiB", 10 << 30)])
def test_sizes_as_people_write_them(text, size):
    from eulerstack.cli.cache_command import Size

    assert Size().convert(text, None, None) == size


def test_verify_names_and_repairs(run, cache):
    assert run("cache", "verify").out.endswith("2 results, 2 objects, 2 trees, 2.344 KiB read: 0 damaged\n")
    (path,) = (path for path in cache.glob("objects/*/*") if path.read_text().startswith("old"))
    path.chmod(0o644)
    path.write_text("other")
    said = run("cache", "verify")
    assert said.status == 1
    assert said.out.splitlines()[0].startswith(f"{path}: its content is ")
    assert "verify --repair" in said.out
    assert path.exists()
    said = run("cache", "verify", "--repair")
    assert said.status == 1
    assert f"{path} is now {cache}/damaged/" in said.out
    assert (
        run("cache", "verify")
        .out.splitlines()[0]
        .endswith("names 1 objects that are not there, " + path.name[:12] + " first")
    )
    assert run("cache", "verify", "--repair").status == 1
    assert run("cache", "verify").status == 0


def test_clear_asks_and_refuses_under_a_run(run, cache):
    said = run("cache", "clear")  # nobody answers
    assert said.status == 1
    assert "Everything in it can be made again" in said.out
    assert list(cache.glob("results/*"))
    file = locks.take(cache / "tmp" / "run.lock")
    said = run("cache", "clear", "--yes")
    os.close(file)
    assert said.status == 1
    assert "is at work in it" in said.problems[0][0]
    said = run("cache", "clear", "--yes")
    assert (said.status, said.err) == (0, "")
    assert [path.name for path in cache.iterdir()] == ["store.lock"]


def test_a_workspace_without_a_cache(run, own):
    for arguments in (("stats",), ("gc",), ("verify",), ("clear", "--yes")):
        assert run("cache", *arguments).status == 0
    assert not (own / "cache").exists()

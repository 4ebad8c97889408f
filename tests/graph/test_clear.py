"""Clearing takes all that is ours, nothing else, and waits for nobody."""

import os

import pytest

from eulerstack.errors import CacheError
from eulerstack.graph import locks
from eulerstack.graph.clear import clear
from eulerstack.graph.inventory import FILES, PARTS


@pytest.fixture
def cache(tmp_path):
    for name in PARTS:
        (tmp_path / "cache" / name / "deep").mkdir(parents=True)
        (tmp_path / "cache" / name / "deep" / "file").touch()
    for name in (*FILES, "mine.txt"):
        (tmp_path / "cache" / name).touch()
    return tmp_path / "cache"


def test_everything_of_ours_goes(cache):
    clear(cache)
    assert sorted(path.name for path in cache.iterdir()) == ["mine.txt", "store.lock"]


@pytest.mark.parametrize("name", ["tmp/run.lock", "locks/key.lock"])
def test_a_run_at_work_is_not_pulled_from_under(cache, name):
    file = locks.take(cache / name)
    with pytest.raises(CacheError, match=f"process {os.getpid()} is at work in it"):
        clear(cache)
    assert (cache / "results/deep/file").exists()
    os.close(file)
    clear(cache)
    assert not (cache / "results").exists()


def test_nor_is_one_that_puts_a_result_together(cache):
    with locks.among(cache / "store.lock"), pytest.raises(CacheError, match="another process is at work in it"):
        clear(cache)
    assert (cache / "results/deep/file").exists()


def test_a_run_is_seen_from_its_first_task_on(house, inside):
    steps = inside()
    step = steps["normalize:one"]
    step.build()
    with pytest.raises(CacheError, match="is at work in it"):
        clear(house.root / "cache")
    step.place.scratch.close()
    clear(house.root / "cache")
    assert not step.place.store.cache.joinpath("results").exists()


def test_what_was_cleared_is_made_again(house):
    house.doit()
    before = house.contents()
    clear(house.root / "cache")
    house.doit()
    assert house.contents() == before

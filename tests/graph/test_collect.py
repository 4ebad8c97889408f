"""A collection removes what was not used for longest, nothing that is in use, and may be killed at any moment."""

import os
import time
from pathlib import Path

import pytest
from filelock import FileLock

from eulerstack.digest import Digests, Memo, digest_of
from eulerstack.graph import locks, stamp
from eulerstack.graph.collect import Collector, Wish
from eulerstack.graph.inventory import sizes
from eulerstack.graph.locks import Scratch
from eulerstack.graph.store import Store
from eulerstack.graph.verify import verify

DAY = 86_400
SHARED = b"the same in all " * 8


class Shelf:
    """A store of results of a known age, each with a file and a directory of its own and a file that all have."""

    def __init__(self, root: Path):
        self.root = root
        self.cache, self.build = root / "cache", root / "build"
        self.build_scratch = Scratch(self.build / ".tmp")
        self.store = Store(self.cache, Digests(Memo(self.cache / "digests")), Scratch(self.cache / "tmp"), pytest.fail)

    def keep(self, name: str, days: float = 0) -> dict:
        out = self.root / f"out-{name}"
        (out / "hf").mkdir(parents=True)
        (out / "report.json").write_text(f"report of {name}")
        (out / "hf" / "model.bin").write_bytes(f"weights of {name} ".encode() * 100)
        (out / "hf" / "tokenizer.json").write_bytes(SHARED)
        found = self.store.keep({"key": key(name), "note": "", "summary": ""}, out, {})
        then = time.time() - days * DAY
        os.utime(self.path(name), (then, then))
        return found

    def publish(self, name: str) -> Path:
        found = self.store.find(digest_of(key(name)))
        self.store.publish(found["outputs"], self.build / name, self.build_scratch)
        return self.build / name

    def path(self, name: str) -> Path:
        return self.store.result(digest_of(key(name)))

    def left(self) -> set[str]:
        return {name for name in ("old", "mid", "new") if self.path(name).exists()}

    def collect(self, **wish):
        return Collector(self.cache, self.build, Wish(**wish)).run()

    def size(self) -> int:
        return sum(sizes(self.cache).values())


def key(name: str) -> dict:
    return {"stage": "export", "inputs": {"name": name}}


@pytest.fixture
def shelf(tmp_path):
    found = Shelf(tmp_path)
    for name, days in (("old", 40), ("mid", 20), ("new", 1)):
        found.keep(name, days)
    return found


def sound(shelf) -> bool:
    """Whether each result that there is has all that it names, and nothing is there that none names."""
    found = verify(shelf.cache)
    return not found.damaged and (found.objects, found.trees) == (
        2 * found.results + bool(found.results),
        found.results,
    )


def test_without_a_wish_only_what_nobody_names_goes(shelf):
    shelf.path("mid").unlink()
    (shelf.cache / "tmp" / "123-dead").mkdir(parents=True)
    (shelf.cache / "tmp" / "123-dead.lock").touch()
    done = shelf.collect()
    assert done.removed == {"objects": 2, "trees": 1}
    assert shelf.left() == {"old", "new"}
    assert sound(shelf)
    assert not [path for path in shelf.cache.glob("tmp/*") if "dead" in path.name]


def test_the_least_recently_used_go_until_it_fits(shelf):
    one = shelf.collect(dry=True).left // 3
    done = shelf.collect(max_size=2 * one)
    assert shelf.left() == {"new"}
    assert done.removed["results"] == 2
    assert done.left == shelf.size() <= 2 * one
    assert sound(shelf)


def test_use_is_remembered_when_a_result_is_found(shelf):
    assert shelf.store.find(digest_of(key("old")))
    shelf.collect(older_than=10 * DAY)
    assert shelf.left() == {"old", "new"}


def test_a_result_used_within_a_day_is_not_written_to(shelf):
    then = time.time() - DAY / 2
    os.utime(shelf.path("new"), (then, then))
    assert shelf.store.find(digest_of(key("new")))
    assert shelf.path("new").stat().st_mtime == pytest.approx(then, abs=1e-3)


def test_a_clock_that_was_wrong_is_made_good(shelf):
    future = time.time() + 400 * DAY
    os.utime(shelf.path("new"), (future, future))
    assert shelf.store.find(digest_of(key("new")))
    assert shelf.path("new").stat().st_mtime < future - 300 * DAY


def test_a_dry_run_says_the_same_and_changes_nothing(shelf):
    def times():
        return {path: path.lstat().st_mtime_ns for path in shelf.cache.rglob("*")}

    before = times()
    told = shelf.collect(older_than=30 * DAY, dry=True)
    assert times() == before
    done = shelf.collect(older_than=30 * DAY)
    assert (told.removed, told.freed, told.left) == (done.removed, done.freed, done.left)
    assert done.removed == {"results": 1, "objects": 2, "trees": 1}


def test_what_the_build_folder_links_to_stays_unless_asked_for(shelf):
    hf = shelf.publish("old") / "hf"
    done = shelf.collect(max_size=0)
    assert shelf.left() == {"old"}
    assert done.published == 1
    assert (hf / "model.bin").read_bytes().startswith(b"weights of old")
    shelf.collect(max_size=0, published_too=True)
    assert shelf.left() == set()
    assert not (hf / "model.bin").exists()
    assert list(shelf.cache.glob("objects/*/*")) == []


@pytest.mark.parametrize("how", ["made", "read"])
def test_what_is_in_use_stays(shelf, how):
    lock = shelf.cache / "locks" / f"{shelf.path('old').stem}.lock"
    with locks.held(lock, pytest.fail) if how == "made" else locks.in_use([shelf.path("old")]):
        assert shelf.collect(max_size=0).busy == 1
        assert shelf.left() == {"old"}
    assert sound(shelf)


def test_a_result_used_since_it_was_judged_stays(shelf):
    collector = Collector(shelf.cache, shelf.build, Wish(max_size=0))
    shelf.store.find(digest_of(key("old")))
    collector.run()
    assert shelf.left() == {"old"}


def test_a_result_published_since_it_was_judged_stays(shelf):
    """Found without a trace in its time, for it was used today already."""
    collector = Collector(shelf.cache, shelf.build, Wish(max_size=0))
    then = shelf.path("new").stat().st_mtime
    shelf.publish("new")
    os.utime(shelf.path("new"), (then, then))
    collector.run()
    assert shelf.left() == {"new"}


def test_nothing_is_swept_while_a_result_is_put_together(shelf, monkeypatch):
    monkeypatch.setattr("eulerstack.graph.collect.PATIENCE", 0.05)
    shelf.path("mid").unlink()
    with locks.among(shelf.store.lock):
        done = shelf.collect()
    assert done.unswept
    assert verify(shelf.cache).objects == 7
    assert not shelf.collect().unswept
    assert sound(shelf)


def test_a_collection_in_the_midst_of_keeping_takes_no_part_of_it(shelf, monkeypatch):
    monkeypatch.setattr("eulerstack.graph.collect.PATIENCE", 0.05)
    write, unswept = stamp.write, []

    def collect_and_write(*arguments):
        unswept.append(shelf.collect().unswept)
        write(*arguments)

    monkeypatch.setattr("eulerstack.graph.store.stamp.write", collect_and_write)
    shelf.keep("late")
    assert unswept == [True]
    assert sound(shelf)


def test_a_damaged_result_goes_and_an_unreadable_one_stops_it(shelf):
    shelf.path("new").write_bytes(b"{}")
    shelf.collect()
    assert shelf.left() == {"old", "mid"}
    shelf.path("new").mkdir()  # as good as unreadable, for root too
    with pytest.raises(OSError, match="directory"):
        shelf.collect(max_size=0)
    assert {"old", "mid"} < shelf.left()


def test_old_damaged_things_and_logs_go_by_age_only(shelf):
    for name in ("damaged/x.123", "logs/export/gone.log"):
        (shelf.cache / name).parent.mkdir(parents=True)
        (shelf.cache / name).write_text("!")
    shelf.collect(max_size=0)
    assert (shelf.cache / "damaged/x.123").exists()
    time.sleep(0.05)
    assert shelf.collect(older_than=0).removed == {"damaged": 1, "logs": 1}
    assert not (shelf.cache / "damaged/x.123").exists()


def test_token_shards_go_by_use_and_unfinished_ones_at_once(shelf):
    tokens = shelf.cache / "tokens"
    tokens.mkdir()
    then = time.time() - 50 * DAY
    for name in ("a.json", "a.npy", "b.json", "b.npy", "c.npy", ".c.npy.tmp", ".d.npy.tmp"):
        (tokens / name).write_text("tokens")
        if name[0] != "b":
            os.utime(tokens / name, (then, then))
    with FileLock(tokens / ".d.json.lock"):
        done = shelf.collect()
        assert (done.removed, done.busy) == ({"token shards": 1}, 1)
    assert shelf.collect(older_than=45 * DAY).removed["token shards"] == 2
    assert sorted(path.name for path in tokens.iterdir() if path.suffix != ".lock") == ["b.json", "b.npy"]


def test_a_kill_at_any_moment_leaves_a_sound_store(tmp_path, monkeypatch):
    ended = False
    for moment in range(60):
        shelf = Shelf(tmp_path / str(moment))
        for name, days in (("old", 40), ("mid", 20), ("new", 1)):
            shelf.keep(name, days)
        left = [moment]

        def stop(what, left=left):
            def act(*arguments, **options):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return what(*arguments, **options)

            return act

        with monkeypatch.context() as patched:
            for name in ("unlink", "rename", "rmdir"):
                patched.setattr(Path, name, stop(getattr(Path, name)))
            patched.setattr("eulerstack.graph.locks.shutil.rmtree", stop(locks.shutil.rmtree))
            try:
                shelf.collect(older_than=10 * DAY)
                ended = True
            except KeyboardInterrupt:
                pass
        assert verify(shelf.cache).damaged == []
        assert "new" in shelf.left()
        shelf.collect()
        assert sound(shelf)
        if ended:
            break
    assert ended
    assert moment > 6

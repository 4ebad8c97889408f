"""Locks and temporary folders end with their process."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from eulerstack.graph import locks
from eulerstack.graph.locks import Scratch, held, take

HOLDER = """
import sys, time
from pathlib import Path
from eulerstack.graph import locks
with locks.held(Path(sys.argv[1]), print):
    folder = locks.Scratch(Path(sys.argv[2])).folder()
    (folder / "unfinished").touch()
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock `key.lock` and has a folder below `tmp`."""
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path / "key.lock"), str(tmp_path / "tmp")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_lock_is_gone_with_its_block(tmp_path):
    with held(tmp_path / "key.lock", pytest.fail):
        assert (tmp_path / "key.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_the_second_waits_and_hears_for_whom(tmp_path, holder):
    said = []
    threading.Timer(0.3, holder.send_signal, [signal.SIGKILL]).start()
    began = time.monotonic()
    with held(tmp_path / "key.lock", said.append):
        assert time.monotonic() - began > 0.2
    assert said == [str(holder.pid)]
    assert not (tmp_path / "key.lock").exists()


def test_threads_exclude_each_other(tmp_path):
    inside, most = [], []

    def work():
        with held(tmp_path / "key.lock", lambda pid: None):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1] * 8


def test_a_file_system_without_locks_is_an_error_with_advice(tmp_path, monkeypatch):
    import errno

    from eulerstack.errors import CacheError

    def refuse(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with pytest.raises(CacheError, match="EULERSTACK_CACHE"):
        take(tmp_path / "key.lock")


def test_a_killed_process_is_tidied_up_after_and_a_living_one_is_not(tmp_path, holder):
    Scratch(tmp_path / "tmp").sweep()
    assert len(list((tmp_path / "tmp").glob("*/unfinished"))) == 1
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    Scratch(tmp_path / "tmp").sweep()
    locks.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_job_folder_is_gone_with_its_block_and_the_rest_on_close(tmp_path):
    scratch = Scratch(tmp_path / "tmp")
    with scratch.job() as folder:
        (folder / "file").touch()
    assert not folder.exists()
    assert scratch.folder().exists()
    scratch.sweep()
    assert scratch.folder().exists()
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_many_may_be_among_and_one_alone(tmp_path):
    path = tmp_path / "shared.lock"
    with locks.among(path), locks.among(path), locks.alone(path, 0) as alone:
        assert not alone
    with locks.alone(path, 0) as alone, locks.alone(path, 0.05) as second:
        assert (alone, second) == (True, False)


def test_one_who_wants_to_be_alone_waits_for_the_others(tmp_path):
    path, entered, leave = tmp_path / "shared.lock", threading.Event(), threading.Event()

    def work():
        with locks.among(path):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(10)
    threading.Timer(0.1, leave.set).start()
    with locks.alone(path, 10) as alone:
        assert alone
        assert leave.is_set()
    thread.join()


def test_a_file_in_use_is_not_free(tmp_path):
    path = tmp_path / "result.json"
    path.touch(mode=0o444)
    with locks.in_use([path, tmp_path / "gone"]), locks.in_use([path]), locks.free(path) as idle:
        assert not idle
    with locks.free(path) as idle:
        assert idle
    with locks.free(tmp_path / "gone") as idle:
        assert not idle
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_a_lock_is_had_at_once_or_not(tmp_path, holder):
    with locks.unless_held(tmp_path / "key.lock") as ours:
        assert not ours
    assert (tmp_path / "key.lock").exists()
    with locks.unless_held(tmp_path / "other.lock") as ours:
        assert ours
    assert not (tmp_path / "other.lock").exists()


def test_the_living_are_named(tmp_path, holder):
    (tmp_path / "tmp" / "1-dead.lock").touch()
    assert locks.living(tmp_path / "tmp") == locks.living(tmp_path) == [str(holder.pid)]
    assert locks.living(tmp_path / "nowhere") == []

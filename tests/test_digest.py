"""Digests are right whatever happened to the file, and read each content once."""

import os
import time
from types import SimpleNamespace

import pytest

from eulerstack import digest
from eulerstack.digest import Digests, Memo, canonical, digest_of, files_under, hash_file
from eulerstack.errors import CacheError

SETTLED = 0.05  # seconds after which a file counts as no longer being written


@pytest.fixture
def digests(tmp_path):
    return Digests(Memo(tmp_path / "memory"))


@pytest.fixture
def reads(monkeypatch):
    """The files that were read, in order."""
    found = []
    monkeypatch.setattr(digest, "hash_file", lambda path: found.append(path) or hash_file(path))
    return found


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"first")
    time.sleep(SETTLED)
    return path


def test_canonical_json_does_not_depend_on_order_or_spelling():
    assert canonical({"b": 1, "a": [1, "ü"]}) == '{"a":[1,"ü"],"b":1}'.encode()
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 2, "b": 2})


def test_canonical_json_refuses_what_json_cannot_say():
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(float("nan"))


def test_a_file_is_read_once(digests, file, reads):
    assert digests.file(file) == digests.file(file) == hash_file(file)
    assert reads == [file]


def test_another_process_remembers(tmp_path, digests, file, reads):
    digests.file(file)
    assert Digests(Memo(tmp_path / "memory")).file(file) == hash_file(file)
    assert reads == [file]


def test_the_same_size_and_mtime_do_not_hide_an_edit(digests, file):
    before, times = digests.file(file), file.stat()
    file.write_bytes(b"secnd")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_mtime_ns == times.st_mtime_ns
    assert digests.file(file) == hash_file(file) != before


def test_a_replaced_file_with_old_times_is_read_again(digests, file, tmp_path):
    before, times = digests.file(file), file.stat()
    other = tmp_path / "other"
    other.write_bytes(b"other")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(file)
    assert digests.file(file) == hash_file(file) != before


def test_a_file_that_may_still_be_changing_is_not_remembered(digests, file, reads, monkeypatch):
    monkeypatch.setattr(digest, "TICK", 60_000_000_000)  # however long this machine takes for the next lines
    file.write_bytes(b"third")
    digests.file(file)
    digests.file(file)
    assert reads == [file, file]


def test_a_touched_file_is_read_once_more_and_no_more(digests, file, reads):
    digests.file(file)
    os.utime(file, (1, 1))
    time.sleep(SETTLED)
    digests.file(file)
    digests.file(file)
    assert len(reads) == 2


def test_whole_second_change_times_are_trusted_late():
    fine, coarse = SimpleNamespace(st_ctime_ns=5_000_000_001), SimpleNamespace(st_ctime_ns=5_000_000_000)
    assert digest._tick(fine) < 50_000_000
    assert digest._tick(coarse) > 1_000_000_000


def test_hard_links_share_what_is_remembered(digests, file, tmp_path, reads):
    link = tmp_path / "link"
    link.hardlink_to(file)
    digests.remember(file, hash_file(file))
    assert digests.file(link) == hash_file(file)
    assert reads == []


@pytest.mark.parametrize("harm", ["cut", "flip", "garbage"])
def test_a_damaged_memory_forgets_and_never_lies(tmp_path, digests, file, harm):
    right = digests.file(file)
    memory = tmp_path / "memory"
    data = bytearray(memory.read_bytes())
    if harm == "cut":
        data = data[:-20]
    elif harm == "flip":
        data[-10] ^= 1
    else:
        data = bytearray(os.urandom(500))
    memory.write_bytes(data)
    assert Digests(Memo(memory)).file(file) == right


def test_a_memory_that_cannot_be_written_is_said_once(tmp_path, file, capsys):
    (tmp_path / "blocked").write_text("a file where a directory should be")
    digests = Digests(Memo(tmp_path / "blocked" / "memory"))
    assert digests.file(file) == hash_file(file)
    digests.memo.put("another", "fact")
    assert capsys.readouterr().err.count("not remembered") == 1


def test_an_overgrown_memory_keeps_its_newer_half(tmp_path, monkeypatch):
    memory = Memo(tmp_path / "memory")
    for number in range(100):
        memory.put(f"key {number}", "value")
    monkeypatch.setattr(digest, "MAX_BYTES", 100)
    reopened = Memo(tmp_path / "memory")
    assert (reopened.get("key 10"), reopened.get("key 99")) == (None, "value")
    assert (tmp_path / "memory").read_bytes().count(b"\n") < 60


def test_intact_is_a_regular_file_with_this_content(digests, file, tmp_path):
    entry = {"sha256": hash_file(file), "size": 5}
    link = tmp_path / "link"
    link.symlink_to(file)
    assert digests.is_intact(file, entry)
    assert not digests.is_intact(link, entry)
    assert not digests.is_intact(tmp_path / "absent", entry)
    assert not digests.is_intact(file, entry | {"size": 6})
    assert not digests.is_intact(file, entry | {"sha256": "0" * 64})


def test_files_under_lists_files_and_refuses_links_and_empty_folders(tmp_path):
    assert files_under(tmp_path) == {}
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "b").touch()
    (tmp_path / "a").touch()
    assert list(files_under(tmp_path)) == ["a", "deep/er/b"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(CacheError, match="empty: CacheError: an empty directory"):
        files_under(tmp_path)
    (tmp_path / "empty").rmdir()
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(CacheError, match="neither a file nor a directory"):
        files_under(tmp_path)

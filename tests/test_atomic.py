import subprocess
import sys

import pytest

from eulerstack.atomic import made_once, whole

RACE = """
import sys, time
from pathlib import Path
from eulerstack.atomic import made_once

def make(file):
    with Path(sys.argv[2]).open("a") as log:
        log.write("made ")
    time.sleep(0.3)
    file.write(b"content")

made_once(Path(sys.argv[1]), make)
"""


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "x"
    with whole(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_failure_leaves_the_file_before(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"before")

    def make(file):
        file.write(b"half")
        raise KeyError

    with pytest.raises(KeyError):
        made_once(path, make, lambda p: False)
    assert path.read_bytes() == b"before"
    assert not (tmp_path / ".x.tmp").exists()


def test_what_a_killed_writer_left_is_overwritten(tmp_path):
    (tmp_path / ".x.tmp").write_bytes(b"left behind, and longer")
    with whole(tmp_path / "x") as file:
        file.write(b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_what_is_there_is_not_made_again(tmp_path):
    path = tmp_path / "deep" / "x"
    made_once(path, lambda file: file.write(b"first"))
    made_once(path, lambda file: file.write(b"second"))
    assert path.read_bytes() == b"first"


def test_what_is_not_sound_is_made_again(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"rotten")
    made_once(path, lambda file: file.write(b"sound"), lambda p: p.read_bytes() == b"sound")
    assert path.read_bytes() == b"sound"


def test_of_several_processes_one_makes_it(tmp_path):
    command = [sys.executable, "-c", RACE, str(tmp_path / "x"), str(tmp_path / "log")]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "made "
    assert (tmp_path / "x").read_bytes() == b"content"

"""doit runs what a change can have touched, and no more; whatever happens in between, the next run is right."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

ALL = [f"{stage}:{preset}" for stage in ("normalize", "compile", "export", "cpu_sanity") for preset in ("one", "two")]
BLOCK = """
import sys

class Blocked:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "yaml", "pydantic", "numpy", "socket"):
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Blocked)
"""
LIGHT_DODO = """
from eulerstack.graph.tasks import DOIT_CONFIG, tasks_of

task_stages = tasks_of("toyhouse.stages")
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


@pytest.fixture
def built(house):
    """The house, everything built."""
    house.doit()
    assert sorted(house.executed()) == sorted(ALL)
    return house


def test_a_second_run_does_nothing_writes_nothing_and_imports_nothing_heavy(built):
    def times():
        paths = (path for top in ("build", "cache") for path in built.root.joinpath(top).rglob("*"))
        return {path: path.lstat().st_mtime_ns for path in paths}

    (built.root / "dodo.py").write_text(BLOCK + LIGHT_DODO)
    built.doit()  # files that were new in the first run are remembered now
    before = times()
    assert built.doit() == "8 tasks up to date\n"
    assert built.executed() == []
    assert times() == before
    assert built.leftovers() == []


def test_edits_run_what_they_touch(built):
    built.preset("one", "alpha beta  # said differently\n")
    built.doit()
    assert built.executed() == ["normalize:one"]
    library = built.root / "toyhouse/lib.py"
    library.write_text('"""A docstring."""\nFACTOR = 2  # and a comment\n')
    assert built.doit() == "8 tasks up to date\n"
    before = library.stat()
    library.write_text(library.read_text().replace("= 2", "= 3"))
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    built.doit()
    assert sorted(built.executed()) == sorted(name for name in ALL if not name.startswith("normalize"))
    assert json.loads((built.root / "build/two/compile.json").read_text()) == {"gamma": 15}


def test_going_back_restores_and_an_equal_preset_shares(built):
    before = built.contents()
    built.preset("one", "delta\n")
    built.doit()
    built.executed()
    built.preset("one", "alpha beta\n")
    built.preset("three", "alpha beta\n")
    output = built.doit()
    assert built.executed() == []
    assert len(re.findall(" restored ", output)) == 8
    assert {name: data for name, data in built.contents().items() if not name.startswith("three")} == before


def test_tampering_is_undone_without_work_unless_the_store_was_hit(built):
    before = built.contents()
    (built.root / "build/one/compile.json").write_text("")
    (built.root / "build/two/.stamps/export.json").write_bytes(b"{}")
    (built.root / "build/one/hf").unlink()
    built.doit()
    assert built.executed() == []
    assert built.contents() == before
    weights = built.root / "build/one/hf/deep/model.bin"
    times = weights.stat()
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes().swapcase())
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "is not what was written there" in built.doit()
    assert built.executed() == ["export:one"]
    assert built.contents() == before


def test_an_edit_during_the_run_is_not_published(house):
    house.preset("one", "slow alpha\n")
    running = house.start("normalize:one")
    wait_for(house.root / "presets/started")
    house.preset("one", "quick\n")
    house.release()
    output, _ = running.communicate(timeout=30)
    assert running.returncode == 1
    assert "presets/one.yml, inputs.preset changed while it was running; nothing was published" in output
    assert not (house.root / "build/one/normalize.json").exists()
    house.doit("normalize:one")
    assert json.loads((house.root / "build/one/normalize.json").read_text()) == ["quick"]


@pytest.mark.parametrize(("how", "options"), [(signal.SIGKILL, ()), (signal.SIGTERM, ()), (signal.SIGINT, ("-n", "1"))])
def test_a_killed_run_keeps_what_was_finished_and_leaves_nothing(house, how, options):
    house.preset("three", "slow alpha\n")
    running = house.start("run", *options, "normalize:one", "normalize:three", "normalize:two")
    wait_for(house.root / "presets/started")
    before = house.contents()
    assert "one/.stamps/normalize.json" in before
    running.send_signal(how)
    output, _ = running.communicate(timeout=20)
    assert running.returncode not in (0, 1, 3)
    assert "Traceback" not in output
    assert gone(int((house.root / "presets/started").read_text()))
    assert house.contents() == before
    # the file of a lock that nobody holds any more is swept by the next run
    assert how == signal.SIGKILL or [path for path in house.leftovers() if path.suffix != ".lock"] == []
    house.executed()
    house.release()
    house.doit("normalize")
    assert sorted(house.executed()) == ["normalize:three", "normalize:two"]
    assert house.leftovers() == []


def test_two_at_once_share_the_work(house):
    house.preset("one", "slow alpha\n")
    first = house.start()
    wait_for(house.root / "presets/started")
    second = house.start()
    assert second.stdout.readline().startswith(f"normalize:one waits for process {first.pid}")
    house.release()
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert sorted(house.executed()) == sorted(ALL)
    assert house.leftovers() == []


def test_a_failure_is_a_message_and_the_rest_goes_on_if_asked(house):
    house.preset("one", "fail alpha\n")
    output = house.doit("-c", status=1)
    assert re.search(r"^normalize:one +FAILED", output, re.M)
    assert "one.yml:1: ValidationError: a word that fails\nFix: remove it\nSee: docs/language.md\n" in output
    assert re.search(r"^compile:one +blocked .* needs normalize:one, which failed", output, re.M)
    assert re.search(r"^cpu_sanity:two +made .* PASS", output, re.M)
    house.preset("one", "alpha beta\n")
    house.executed()
    house.doit("-c")
    assert sorted(house.executed()) == sorted(name for name in ALL if name.endswith("one"))


def test_the_store_and_a_failure_of_another_run_do_not_meet(house):
    house.preset("one", "fail\n")
    house.preset("two", "slow gamma\n")
    first = house.start("-c")
    wait_for(house.root / "presets/started")
    second = house.start("-c")
    house.release()
    assert "normalize:one" in second.communicate(timeout=60)[0]
    assert second.returncode == 1
    assert first.communicate(timeout=30)[0]
    assert first.returncode == 1


def test_two_jobs_at_a_time_give_the_same(built, new_house):
    other = new_house()
    for name, text in (("one", "alpha beta\n"), ("two", "gamma  # a comment\n")):
        other.preset(name, text)
    output = other.doit("-n", "2")
    assert sorted(other.executed()) == sorted(ALL)
    assert "8 made, 0 up to date" in output
    assert other.contents() == built.contents()


def test_a_killed_worker_fails_its_task_under_two_jobs_too(house):
    house.preset("one", "die\n")
    assert "killed by signal 9" in house.doit("-n", "2", "-c", status=1)
    assert "cpu_sanity:two" in house.executed()


def test_a_skipped_stage_is_said_to_be_skipped(built):
    output = built.doit("gpu_sanity")
    assert re.search(r"^gpu_sanity:one +skipped .* no CUDA device$", output, re.M)
    assert "2 skipped: no CUDA device, 8 up to date" in output
    assert "2 skipped: no CUDA device, 8 up to date" in built.doit("gpu_sanity")
    assert "passed" not in output


def test_an_unknown_task_is_an_error_before_anything_runs(house):
    assert "compile:nobody" in house.doit("compile:nobody", status=3)
    assert house.executed() == []


@pytest.mark.parametrize("name", ["a=b", "a*b"])
def test_a_name_that_doit_would_misread_is_an_error_with_advice(house, name):
    house.preset(name, "alpha\n")
    for command in ("list", "normalize"):
        output = house.doit(command, status=3)
        assert f"{house.root}/presets/{name}.yml: ValidationError: the name of a preset may hold" in output
        assert "Fix: rename the file" in output
    assert house.executed() == []


def test_hidden_files_are_no_presets(house):
    """An editor's lock is a link to nowhere, a file manager's notes are not YAML."""
    (house.root / "presets/.#one.yml").symlink_to("somebody@somewhere.1")
    house.preset("._one", "fail\n")
    assert "2 made" in house.doit("normalize")


def test_a_cache_that_is_no_directory_is_an_error_with_advice(house, monkeypatch):
    environment = house.environment() | {"EULERSTACK_CACHE": "s3://bucket"}
    monkeypatch.setattr(type(house), "environment", lambda _: environment)
    for command in ("list", "normalize"):
        assert "'s3://bucket' is not a local directory\nFix: " in house.doit(command, status=3)


def test_what_cannot_be_replaced_is_named(built):
    stamp = built.root / "build/one/.stamps/normalize.json"
    stamp.unlink()
    stamp.mkdir()
    assert f"normalize:one: CacheError: {stamp}: Is a directory" in built.doit("normalize:one", status=1)


def test_a_garbled_memory_costs_time_only(built):
    (built.root / "cache/digests").write_bytes(os.urandom(1000))
    assert built.doit() == "8 tasks up to date\n"


def test_build_and_cache_can_lie_elsewhere(house, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    environment = house.environment() | {
        "EULERSTACK_BUILD": str(elsewhere / "b"),
        "EULERSTACK_CACHE": str(elsewhere / "c"),
    }
    monkeypatch.setattr(house, "environment", lambda: environment, raising=False)
    house.doit()
    assert (elsewhere / "b/one/hf/config.json").exists()
    assert not (house.root / "build").exists()
    assert not (house.root / "cache").exists()

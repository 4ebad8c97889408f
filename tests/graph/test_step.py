"""A step is fresh if and only if its outputs are what its key of now would give."""

import json
import os
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from eulerstack.errors import EulerStackError
from eulerstack.graph import stamp

LAST = "cpu_sanity:one"


def build(steps: dict) -> None:
    """What doit does, one step after the other."""
    for step in steps.values():
        if not step.is_fresh():
            step.build()


def test_a_built_step_is_fresh_and_says_what_it_did(inside, house):
    build(inside())
    steps = inside()
    assert all(step.is_fresh() for step in steps.values())
    build(steps)
    assert len(house.executed()) == 8
    assert stamp.read(steps[LAST].stamp)["summary"] == "PASS"


def test_a_key_holds_everything_that_decides(inside):
    build(inside())
    key = inside()["export:one"].key()
    assert sorted(key) == ["code", "inputs", "libraries", "modeling", "python", "stage", "version"]
    assert key["modeling"] == {"m.py": "b"}
    assert sorted(key["code"]) == [
        f"toyhouse/{name}" for name in ("__init__.py", "stages/__init__.py", "stages/export.py")
    ]
    assert inside()[LAST].key()["modeling"] == {"m.py": "m"}
    assert list(inside()["normalize:one"].key()["libraries"]) == ["pyyaml"]


def test_a_skipped_stage_leaves_a_verdict_that_is_no_pass(inside, house):
    build(inside())
    step = inside()["gpu_sanity:one"]
    assert step.is_fresh()
    assert step.note == "skipped: no CUDA device"
    verdict = json.loads((house.root / "build/one/gpu_sanity.json").read_text())
    assert (verdict["verdict"], verdict["reason"], verdict["checks"]) == ("SKIPPED", "no CUDA device", [])


def test_a_failed_check_shows_its_verdict_and_vouches_for_nothing(inside, house):
    house.preset("one", "unsound\n")
    steps = inside()
    with pytest.raises(EulerStackError, match="not sound"):
        build(steps)
    assert json.loads((house.root / "build/one/cpu_sanity.json").read_text())["verdict"] == "FAIL"
    assert not steps[LAST].stamp.exists()
    assert "not sound" in steps[LAST].failure.read_text()


@pytest.mark.parametrize(
    ("words", "message"), [("half", None), ("fail", "a word that fails"), ("crash", "a crash"), ("die", "signal 9")]
)
def test_nothing_of_a_failed_run_is_published(inside, house, words, message):
    build(inside())
    before = house.contents()
    house.preset("one", f"{words} alpha\n")
    if message is None:
        build(inside())
        assert house.contents() != before
    else:
        with pytest.raises(EulerStackError, match=message):
            build(inside())
        after = house.contents()
        assert {name: data for name, data in after.items() if not name.endswith(".failed")} == before


def test_a_stage_that_writes_something_else_than_announced_fails(inside, house, monkeypatch):
    steps = inside()
    monkeypatch.setattr(steps["normalize:one"].stage, "OUTPUTS", ("normalize.json", "extra.json"))
    with pytest.raises(EulerStackError, match=r"wrote normalize.json where normalize.json, extra.json was expected"):
        steps["normalize:one"].build()


def test_upstream_must_be_up_to_date_even_if_doit_is_told_not_to_look(inside, house):
    build(inside())
    house.preset("one", "changed\n")
    with pytest.raises(EulerStackError, match=r"normalize:one is not up to date: changed: inputs.preset"):
        inside()["compile:one"].build()


def test_code_edited_since_the_first_task_publishes_nothing(inside, house):
    steps = inside()
    steps["normalize:one"].build()
    (house.root / "toyhouse/lib.py").write_text("FACTOR = 6\n")
    with pytest.raises(EulerStackError, match=r"toyhouse/lib.py changed while doit was running"):
        steps["compile:one"].build()
    build(inside())
    assert json.loads((house.root / "build/one/compile.json").read_text())["alpha"] == 30


def test_a_result_of_the_same_key_must_have_the_same_bytes(inside, house, monkeypatch):
    build(inside())
    steps = inside()
    step = steps["export:one"]
    assert step.is_fresh()
    step.build()  # `doit -a`: done again, and the same
    assert step.how == "made"
    monkeypatch.setattr(step.place, "work", lambda step, folder, out: (out / "hf").mkdir() or (out / "hf/x").touch())
    assert step.is_fresh()
    with pytest.raises(EulerStackError, match="the same key gave other bytes"):
        step.build()


def test_a_full_disk_is_a_message_and_harms_nothing(inside, house, monkeypatch):
    build(inside())
    before = house.contents()
    house.preset("one", "another\n")

    def full(*_):
        raise OSError(28, "No space left on device", "/objects/x")

    monkeypatch.setattr("eulerstack.graph.store.os.link", full)
    with pytest.raises(EulerStackError, match="/objects/x: No space left on device"):
        build(inside())
    monkeypatch.undo()
    assert {name: data for name, data in house.contents().items() if not name.endswith(".failed")} == before


class Histories(RuleBasedStateMachine):
    """After any history, building leaves what a clean build leaves, and building again runs nothing."""

    steps_of = None  # set by the test
    house = None

    def __init__(self):
        super().__init__()
        self.presets = {"one": "alpha beta\n", "two": "gamma\n"}
        self.library = "FACTOR = 2\n"
        self.house.wipe()
        for name, text in self.presets.items():
            self.house.preset(name, text)
        self.write_library()

    def write_library(self) -> None:
        (self.house.root / "toyhouse/lib.py").write_text(self.library)

    @rule(name=st.sampled_from(["one", "two"]), text=st.sampled_from(["alpha beta\n", "alpha\n", "gammb\n", "delta\n"]))
    def edit(self, name, text):
        path = self.house.root / f"presets/{name}.yml"
        times = path.stat()
        self.presets[name] = text
        self.house.preset(name, text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if at the same moment

    @rule(name=st.sampled_from(["one", "two"]))
    def comment(self, name):
        self.house.preset(name, f"# {time.time_ns()}\n{self.presets[name]}")

    @rule(factor=st.sampled_from([2, 3]), comment=st.sampled_from(["", "  # why"]))
    def edit_library(self, factor, comment):
        self.library = f"FACTOR = {factor}{comment}\n"
        self.write_library()

    @rule(number=st.integers(0, 30), how=st.sampled_from(["truncate", "flip", "delete", "append"]))
    def tamper(self, number, how):
        files = sorted(name for name in self.house.contents() if not name.endswith(".failed"))
        if not files:
            return
        path = self.house.root / "build" / files[number % len(files)]
        data = path.read_bytes()
        if how == "delete" or not data:
            path.unlink()
            return
        path.chmod(0o644)
        changed = {"truncate": data[: len(data) // 2], "flip": bytes([data[0] ^ 1]) + data[1:], "append": data + b"!"}
        path.write_bytes(changed[how])

    @rule(number=st.integers(0, 40))
    def interrupt(self, number):
        """Stop a build at one of the moments when something is about to appear."""
        place, left = stamp.place, [number]

        def stop(*arguments):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            place(*arguments)

        stamp.place = stop
        try:
            build(self.steps_of())
        except KeyboardInterrupt:
            pass
        finally:
            stamp.place = place

    @rule()
    def build(self):
        build(self.steps_of())
        self.house.executed()
        assert {name: data for name, data in self.house.contents().items() if ".stamps" not in name} == self.expected()
        build(self.steps_of())
        assert self.house.executed() == []

    def expected(self) -> dict[str, bytes]:
        """What a clean build would leave, said independently."""
        factor = int(self.library.split()[2])
        found = {}
        for name, text in self.presets.items():
            words = text.split()
            lengths = {word: factor * len(word) for word in words}
            config = json.dumps(lengths, sort_keys=True).encode()
            skipped = {"checks": [], "reason": "no CUDA device", "training": None, "verdict": "SKIPPED"}
            files = {
                "normalize.json": json.dumps(words).encode(),
                "compile.json": config,
                "code.json": json.dumps({"files": {"m.py": {"bytes": "b", "meaning": "m"}}}).encode(),
                "hf/config.json": config,
                "hf/deep/model.bin": b"weights " + config,
                "cpu_sanity.json": json.dumps({"total": sum(lengths.values()), "verdict": "PASS"}).encode(),
                "gpu_sanity.json": (json.dumps(skipped, indent=1, sort_keys=True) + "\n").encode(),
            }
            found |= {f"{name}/{file}": data for file, data in files.items()}
        return found

    @invariant()
    def no_unfinished_work(self):
        assert list((self.house.root / "cache/locks").glob("*")) == []


def test_after_any_history_an_incremental_build_is_a_clean_build(inside, house):
    Histories.steps_of, Histories.house = staticmethod(inside), house
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=8,
            stateful_step_count=10,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

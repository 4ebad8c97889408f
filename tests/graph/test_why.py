"""Why a step would run again: the input, from what to what, upstream first."""

import re

import pytest

from eulerstack.errors import EulerStackError
from eulerstack.graph.why import why, with_upstream


def build(steps: dict) -> None:
    for step in steps.values():
        if not step.is_fresh():
            step.build()


@pytest.fixture
def ask(inside):
    """A function: the lines on a task, digests and times aside."""

    def lines(name: str, whole: bool = False) -> list[str]:
        found = why(with_upstream(inside()[name]), whole)
        found = [re.sub(r"\b[0-9a-f]{12}\b", "#", line) for line in found]
        return [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "T", line) for line in found]

    return lines


def test_a_task_waits_for_those_before_it_only(inside):
    steps = inside()
    names = [step.name for step in with_upstream(steps["export:one"])]
    assert names == ["normalize:one", "compile:one", "export:one"]


def test_up_to_date_says_since_when_and_with_which_key(inside, ask):
    build(inside())
    assert ask("export:one") == ["export:one: up to date since T, key #"]
    assert ask("gpu_sanity:one") == ["gpu_sanity:one: skipped: no CUDA device, up to date since T, key #"]
    assert len(ask("export:one", whole=True)) == 3


def test_what_was_never_run_says_so(ask):
    assert ask("compile:one") == [
        "normalize:one: was never run",
        "compile:one: was never run, below normalize:one, which was never run",
    ]


def test_an_edited_preset_is_named_with_its_file_and_what_is_below_it_says_so(inside, house, ask):
    build(inside())
    house.preset("one", "alpha gamma\n")
    assert ask("export:one") == [
        "normalize:one: is stale",
        "  key # of T -> #",
        "  inputs.preset (presets/one.yml): # -> #",
        "compile:one: is stale, below normalize:one, which is stale",
        "export:one: is stale, below normalize:one, which is stale",
    ]
    inside()["normalize:one"].build()
    assert ask("compile:one")[2:] == [
        "  inputs.normalize: # -> #",
        '      all of it: ["alpha", "beta"] -> ["alpha", "gamma"]',
    ]
    house.preset("one", "alpha beta\n")
    assert ask("normalize:one")[-1] == "  the cache has this result: it will be restored"


def test_code_and_libraries_are_named(inside, house, ask, monkeypatch):
    build(inside())
    (house.root / "toyhouse/lib.py").write_text("FACTOR = 5\n")
    assert ask("compile:one") == ["compile:one: is stale", "  key # of T -> #", "  code toyhouse/lib.py: # -> #"]
    monkeypatch.setattr("eulerstack.graph.source.Libraries.versions", lambda self, names: dict.fromkeys(names, "99"))
    (line,) = [line for line in ask("normalize:one") if "library" in line]
    assert re.fullmatch(r"  library pyyaml: \S+ -> 99", line)


def test_below_another_what_is_known_of_its_own_is_said_too(inside, house, ask):
    build(inside())
    house.preset("one", "delta\n")
    (house.root / "toyhouse/lib.py").write_text("FACTOR = 5\n")
    assert "  code toyhouse/lib.py: # -> #" in ask("compile:one")


def test_a_failure_is_told_with_its_error(inside, house, ask):
    house.preset("one", "fail\n")
    with pytest.raises(EulerStackError):
        build(inside())
    assert ask("compile:one") == [
        "normalize:one: failed in its last run",
        f"  {house.root}/presets/one.yml:1: ValidationError: a word that fails",
        "  Fix: remove it",
        "  See: docs/language.md",
        "compile:one: was never run, below normalize:one, which failed in its last run",
    ]


def test_changed_outputs_and_a_damaged_stamp(inside, house, ask):
    build(inside())
    (house.root / "build/one/compile.json").write_text("{}")
    (house.root / "build/two/.stamps/compile.json").write_text("{}")
    assert ask("compile:one") == ["compile:one: is stale", "  build/one/compile.json was changed"]
    assert ask("compile:two") == ["compile:two: has a damaged stamp"]


def test_nothing_is_run_and_nothing_is_written_to_the_build_folder(inside, house, ask):
    build(inside())
    house.preset("one", "delta\n")
    before, _ = house.contents(), house.executed()
    ask("gpu_sanity:one", whole=True)
    assert (house.contents(), house.executed()) == (before, [])

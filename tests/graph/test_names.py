"""A name that is no task gets three lines before anything runs, with what was probably meant."""

import pytest

UNKNOWN = {
    ("cpu_sanity:tw",): "did you mean 'cpu_sanity:two'?",
    ("cpu-sanity:two",): "did you mean 'cpu_sanity:two'?",
    ("sanity:tow",): "did you mean 'cpu_sanity:two'?",
    ("compile", "two"): "did you mean 'compile:two'?",
    ("two",): "did you mean 'cpu_sanity:two'?",
    ("expotr",): "did you mean 'export'?",
    ("lsit",): "did you mean 'list'?",
    ("clean", "lsit"): "did you mean 'sanity'?",  # it takes no commands
    ("zzz",): "`doit list` shows every preset and stage",
    ("*:zzz",): "`doit list` shows every preset and stage",
    ("list", "cpu_sanity:tw"): "did you mean 'cpu_sanity:two'?",
    ("clean", "compile", "two"): "did you mean 'compile:two'?",
    ("info", "expor"): "did you mean 'export'?",
    ("export:llm_0p1b_simple",): (
        "it is in the catalogue, not in this workspace: `eulerstack new llm_0p1b_simple --from llm_0p1b_simple`"
    ),
}


@pytest.mark.parametrize("arguments", UNKNOWN, ids=" ".join)
def test_an_unknown_name_gets_three_lines_and_nothing_runs(house, arguments):
    first, fix, see = house.doit(*arguments, status=3).splitlines()
    assert first == f"ERROR: {arguments[-1]}: ValidationError: no such task"
    assert (fix, see) == (f"Fix: {UNKNOWN[arguments]}", "See: docs/building.md#tasks")
    assert house.executed() == []


def test_every_unknown_name_is_said(house):
    lines = house.doit("normalize", "a:b", "c:d", status=3).splitlines()
    assert [line.rpartition("ERROR: ")[2] for line in lines[::3]] == [
        "a:b: ValidationError: no such task",
        "c:d: ValidationError: no such task",
    ]
    assert house.executed() == []


def test_sanity_of_one_preset_has_a_short_name(house):
    assert "cpu_sanity:two" in house.doit("sanity:two")
    assert house.executed() == ["normalize:two", "compile:two", "export:two", "cpu_sanity:two"]
    assert house.doit("list", "sanity:two") == "cpu_sanity:two  up to date\n"
    assert house.doit("sanity:t*") == "4 tasks up to date\n"


def test_what_doit_knows_by_other_names_stays_known(house):
    house.doit("*:one")
    assert "normalize:one" in house.executed()
    stamp = house.root / "build/two/.stamps/compile.json"
    house.doit(str(stamp))
    assert house.executed() == ["normalize:two", "compile:two"]
    assert house.doit("list", str(stamp)) == "compile:two  up to date\n"
    assert len(house.doit("list", "*:two").splitlines()) == 5

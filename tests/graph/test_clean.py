"""`doit clean` takes away what tasks have written, and the next run restores it."""

from types import SimpleNamespace

import pytest
from doit.exceptions import InvalidCommand

from eulerstack.graph.clean import _remove

ALL = ["normalize", "compile", "export", "cpu_sanity"]


@pytest.fixture
def made(house):
    house.doit()
    house.executed()
    return house


def test_what_a_task_wrote_goes_and_nothing_else(made):
    before = made.contents()
    said = made.doit("clean", "export:one")
    assert said.splitlines() == [
        "export:one  removed hf, .stamps/export.json",
        f"1 task cleaned in {made.root}/build; what is in the cache, doit restores",
    ]
    gone = {"one/.stamps/export.json"} | {name for name in before if name.startswith("one/hf/")}
    assert len(gone) == 3
    assert made.contents() == {name: data for name, data in before.items() if name not in gone}
    assert made.doit("list", "export:one") == "export:one  never run\n"
    made.doit()
    assert (made.executed(), made.contents()) == ([], before)


def test_without_names_it_is_all_that_doit_makes_by_itself(made):
    before = made.contents()
    said = made.doit("clean")
    assert {line.split()[0] for line in said.splitlines()[:-1]} == {f"{s}:{p}" for s in ALL for p in ("one", "two")}
    assert (made.contents(), list((made.root / "build").glob("[!.]*"))) == ({}, [])
    assert made.doit("clean") == f"nothing to remove in {made.root}/build\n"
    made.doit()
    assert (made.executed(), made.contents()) == ([], before)


@pytest.mark.parametrize("names", [("-n",), ("--dry-run", "compile"), ("-n", "*:two")])
def test_a_dry_run_only_says_it(made, names):
    before = made.contents()
    said = made.doit("clean", *names)
    assert "compile:two     would remove compile.json, code.json, .stamps/compile.json\n" in said.replace(
        "compile:two  would", "compile:two     would"
    )
    assert "removed" not in said
    assert "tasks would be cleaned in" in said
    assert made.contents() == before


@pytest.mark.parametrize("name", ["sanity", "cpu_sanity"])
def test_a_group_is_its_tasks(made, name):
    assert sorted(made.doit("clean", name).splitlines()[:-1]) == [
        f"cpu_sanity:{preset}  removed cpu_sanity.json, .stamps/cpu_sanity.json" for preset in ("one", "two")
    ]


def test_the_record_of_a_failure_and_what_failed_go_too(house):
    house.preset("bad", "unsound\n")
    house.doit("sanity:bad", status=1)
    assert "sanity:bad  removed cpu_sanity.json, .stamps/cpu_sanity.failed\n" in house.doit("clean", "sanity:bad")
    assert house.doit("list", "sanity:bad") == "cpu_sanity:bad  never run\n"


def test_what_is_not_of_a_task_stays(made):
    mine = made.root / "build/one/notes.txt"
    mine.write_text("mine")
    (made.root / "build/one/hf").unlink()
    (made.root / "build/one/hf").mkdir()
    (made.root / "build/one/hf/mine").write_text("mine")
    made.doit("clean")
    assert made.contents() == {"one/notes.txt": b"mine", "one/hf/mine": b"mine"}


def test_what_cannot_be_removed_is_said(tmp_path):
    with pytest.raises(InvalidCommand) as error:
        _remove([tmp_path], SimpleNamespace(stamp=tmp_path / "x", build_folder=tmp_path))
    assert str(error.value).startswith(f"{tmp_path}: CacheError: cannot be removed: ")
    assert tmp_path.is_dir()

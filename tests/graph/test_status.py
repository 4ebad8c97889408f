"""`doit list` says where every preset and stage stands."""

import pytest

from eulerstack.graph import status


def table(output: str) -> dict[str, dict[str, str]]:
    """Preset -> stage -> status, read off the columns."""
    head, *rows = output.splitlines()
    stages = head.split()
    starts = [head.index(stage) for stage in stages] + [None]
    return {
        row.split()[0]: {stage: row[starts[n] : starts[n + 1]].strip() for n, stage in enumerate(stages)}
        for row in rows
        if ": " not in row
    }


def test_every_status_is_told_apart_and_nothing_heavy_is_imported(house):
    house.preset("bad", "fail\n")
    house.doit("-c", "gpu_sanity", status=1)
    house.preset("two", "something else\n")
    house.preset("new", "alpha\n")
    dodo = house.root / "dodo.py"
    blocked = "import sys\nfor name in ('torch', 'transformers', 'yaml', 'pydantic'):\n    sys.modules[name] = None\n"
    dodo.write_text(blocked + dodo.read_text())
    house.executed()
    found = table(house.doit("list"))
    assert list(found["one"]) == ["normalize", "compile", "export", "cpu_sanity", "gpu_sanity"]
    assert list(found["one"].values()) == ["up to date"] * 4 + ["skipped"]
    assert list(found["two"].values()) == ["stale"] * 5
    assert list(found["new"].values()) == ["never run"] * 5
    assert list(found["bad"].values()) == ["failed"] + ["never run"] * 4
    assert house.executed() == []


def test_tasks_by_name_come_with_reasons(house):
    house.doit("compile")
    house.preset("two", "something else\n")
    (house.root / "build/one/compile.json").write_text("{}")
    assert house.doit("list", "compile") == (
        "compile:one  stale       its outputs were changed or removed\ncompile:two  stale       below normalize:two\n"
    )
    assert house.doit("list", "sanity") == house.doit("list", "cpu_sanity")
    lines = house.doit("list", "--all").splitlines()
    assert len(lines) == 10
    assert "normalize:two   stale       changed: inputs.preset" in lines


def test_a_preset_by_name_is_all_its_stages(house):
    house.doit("normalize")
    lines = house.doit("list", "two").splitlines()
    stages = ["normalize", "compile", "export", "cpu_sanity", "gpu_sanity"]
    assert [line.split()[0] for line in lines] == [f"{stage}:two" for stage in stages]
    assert [line.split(maxsplit=1)[1] for line in lines] == ["up to date"] + ["never run"] * 4
    (house.root / "presets/sanity.yml").write_text("alpha\n")
    assert "cpu_sanity:two" in house.doit("list", "sanity")  # a task's name goes first


def test_names_alone_are_what_doit_itself_lists(house):
    assert house.doit("list", "--all", "--quiet").split()[:3] == ["compile", "compile:one", "compile:two"]
    assert "no such task" in house.doit("list", "nothing", status=3)


def test_what_was_built_of_a_preset_that_is_gone_is_named(house):
    house.doit("normalize")
    (house.root / "presets/two.yml").unlink()
    last = house.doit("list").splitlines()[-1]
    assert last == f"{house.root}/build/two: its preset is gone; remove the directory if you need it no more"


def test_listing_without_presets_is_no_error(new_house):
    new_house().doit("list")


class Fake:
    """A step as far as `states` looks."""

    def __init__(self, name, upstream=(), fresh=True, stamped=True, failed=False, note=""):
        self.name, self.upstream, self.note, self._fresh = name, upstream, note, fresh
        self.stamp, self.failure = Fake.File(stamped), Fake.File(failed)
        self.skipped_for = note

    class File:
        def __init__(self, there):
            self.exists = lambda: there
            self.read_text = lambda encoding: "why\nmore"

    def is_fresh(self):
        return self._fresh

    def reason(self):
        return "edited"


@pytest.mark.parametrize(
    ("above", "below", "expected"),
    [
        ({}, {}, ("up to date", "")),
        ({"fresh": False}, {}, ("stale", "below above")),
        ({"fresh": False, "stamped": False}, {"stamped": False}, ("never run", "")),
        ({"note": "no device"}, {}, ("up to date", "")),
        ({"fresh": False, "failed": True}, {}, ("stale", "below above")),
        ({}, {"fresh": False, "failed": True}, ("failed", "why")),
        ({}, {"fresh": True, "failed": True}, ("up to date", "")),
        ({}, {"note": "no device"}, ("skipped", "no device")),
        ({}, {"fresh": False}, ("stale", "edited")),
    ],
)
def test_a_status_follows_from_the_step_and_what_is_above(above, below, expected):
    first = Fake("above", **above)
    second = Fake("below", (first,), **below)
    assert status.states([first, second])["below"] == expected

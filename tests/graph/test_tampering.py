"""A training run that writes into `build/x/hf` cannot poison the store: the next run is right, and says what happened.

The files there are links to the store's own. Permissions stop nobody who is root, so nothing here relies on them.
"""

import os
import re
import time
from pathlib import Path

import pytest

from eulerstack.graph import tampering

MODEL = "deep/model.bin"


def build(steps: dict) -> dict:
    for step in steps.values():
        if not step.is_fresh():
            step.build()
    return steps


def rewrite(hf: Path) -> None:
    (hf / MODEL).chmod(0o644)
    (hf / MODEL).write_bytes(b"trained")


def rewrite_alike(hf: Path) -> None:
    """The same size, at the same time as it seems."""
    times = (hf / MODEL).stat()
    (hf / MODEL).chmod(0o644)
    (hf / MODEL).write_bytes((hf / MODEL).read_bytes().swapcase())
    (hf / MODEL).chmod(0o444)
    os.utime(hf / MODEL, ns=(times.st_atime_ns, times.st_mtime_ns))


def append(hf: Path) -> None:
    (hf / MODEL).chmod(0o644)
    with (hf / MODEL).open("ab") as file:
        file.write(b"more")


def truncate(hf: Path) -> None:
    (hf / MODEL).chmod(0o644)
    os.truncate(hf / MODEL, 3)


def add(hf: Path) -> None:
    (hf / "checkpoint-1").mkdir()
    (hf / "checkpoint-1" / "optimizer.bin").write_bytes(b"moments")


def rename_over(hf: Path) -> None:
    """As savers do that write whole files."""
    (hf / "new.tmp").write_bytes(b"trained")
    (hf / "new.tmp").replace(hf / MODEL)


def replace_directory(hf: Path) -> None:
    hf.unlink()
    (hf / "deep").mkdir(parents=True)
    (hf / MODEL).write_bytes(b"trained")


# what it does, what is said of it, whether the store itself was hit and the work is done again
DEEDS = {
    "write": (rewrite, "deep/model.bin was changed", True),
    "write alike": (rewrite_alike, "deep/model.bin was changed", True),
    "append": (append, "deep/model.bin was changed", True),
    "truncate": (truncate, "deep/model.bin was changed", True),
    "delete": (lambda hf: (hf / MODEL).unlink(), "deep/model.bin is missing", False),
    "new file": (add, "checkpoint-1/optimizer.bin is new", False),
    "rename over": (rename_over, "deep/model.bin was changed", False),
    "rename": (
        lambda hf: (hf / MODEL).rename(hf / "kept.bin"),
        "deep/model.bin is missing, deep is new, kept.bin is new",
        False,
    ),
    "link": (
        lambda hf: (hf / "latest").symlink_to("deep"),
        "latest is new",
        False,
    ),
    "own directory": (replace_directory, "hf is not the link to the cache that it was", False),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_training_in_place_is_seen_said_and_undone(inside, house, capsys, deed):
    act, told, again = DEEDS[deed]
    build(inside())
    before, _ = house.contents(), house.executed()
    act(house.root / "build/one/hf")
    steps = inside()
    assert not steps["export:one"].is_fresh()
    assert any(told in line for line in looked_at(steps["export:one"]))
    capsys.readouterr()
    build(steps)
    said = capsys.readouterr().err
    assert house.contents() == before
    assert house.executed() == (["export:one"] if again else [])
    assert told in said
    assert "export:one: build/one/hf " in said
    build(inside())
    assert house.executed() == []


def looked_at(step) -> list[str]:
    from eulerstack.graph import stamp

    return tampering.lines(step.place.store, stamp.read(step.stamp)["outputs"], step.build_folder)


@pytest.mark.parametrize("deed", ["write", "new file", "rename over", "own directory"])
def test_what_was_trained_is_kept_aside_and_the_place_is_said(inside, house, capsys, deed):
    build(inside())
    hf = house.root / "build/one/hf"
    DEEDS[deed][0](hf)
    trained = {path.relative_to(hf.resolve()): path.read_bytes() for path in hf.resolve().rglob("*") if path.is_file()}
    capsys.readouterr()
    build(inside())
    places = [Path(text) for text in re.findall(r"it is now (\S+)", capsys.readouterr().err)]
    kept = [
        {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()} for place in places
    ]
    assert trained in kept


def test_a_file_shared_with_another_preset_is_made_good_in_both(inside, house):
    """Equal contents are one file in the store, so writing to one is writing to the other."""
    house.preset("two", "alpha beta  # the same\n")
    build(inside())
    before = house.contents()
    rewrite(house.root / "build/one/hf")
    assert (house.root / "build/two/hf" / MODEL).read_bytes() == b"trained"
    build(inside())
    assert house.contents() == before


def test_a_writer_that_goes_on_while_the_store_hands_out_a_file_is_seen(inside, house, monkeypatch):
    """Written between the check of an object and the link to it: the link must not be taken for sound."""
    steps = build(inside())
    store = steps["export:one"].place.store
    (house.root / "build/one/hf").unlink()
    tree = next(path for path in (house.root / "cache/trees").iterdir() if (path / MODEL).read_bytes().count(b"alpha"))
    held = (tree / MODEL).open("r+b") if os.access(tree / MODEL, os.W_OK) else None
    if held is None:
        (tree / MODEL).chmod(0o644)
        held = (tree / MODEL).open("r+b")
    (tree / "config.json").unlink()  # so that the tree is made anew
    link = os.link

    def slowly(source, target):
        if Path(target).name == "model.bin":
            time.sleep(0.05)
            held.write(b"W")
            held.flush()
        link(source, target)

    with held, monkeypatch.context() as patched:
        patched.setattr("eulerstack.graph.store.os.link", slowly)
        steps = inside()
        assert not steps["export:one"].is_fresh()
        steps["export:one"].build()
    assert store is not steps["export:one"].place.store
    assert not inside()["export:one"].is_fresh()
    build(inside())
    assert (house.root / "build/one/hf" / MODEL).read_bytes().startswith(b"weights")


def test_many_changes_are_not_all_named(inside, house):
    build(inside())
    for number in range(9):
        (house.root / "build/one/hf" / f"log-{number}").touch()
    (line,) = looked_at(inside()["export:one"])
    assert line.endswith("log-5 is new, and 3 more; to train in place, copy the directory first (cp -rL)")


def test_an_edited_file_is_said_and_a_lost_one_is_not(inside, house, capsys):
    build(inside())
    (house.root / "build/one/compile.json").write_text("{}")
    (house.root / "build/two/compile.json").unlink()
    capsys.readouterr()
    steps = inside()
    assert looked_at(steps["compile:two"]) == ["build/two/compile.json is missing"]
    build(steps)
    assert capsys.readouterr().err == "compile:one: build/one/compile.json was changed\n"


def test_a_result_that_vanishes_while_it_is_restored_is_made(inside, house, monkeypatch):
    steps = build(inside())
    house.executed()
    (house.root / "build/one/hf").unlink()
    steps = inside()
    store = steps["export:one"].place.store
    find = store.find

    def and_lose(digest):
        found = find(digest)
        for path in (house.root / "cache").glob("objects/*/*"):
            path.unlink()
        for path in (house.root / "cache").glob("trees/*/*/*"):
            path.unlink()
        return found

    monkeypatch.setattr(store, "find", and_lose)
    assert not steps["export:one"].is_fresh()
    steps["export:one"].build()
    assert steps["export:one"].how == "made"
    assert house.executed() == ["export:one"]
    assert (house.root / "build/one/hf" / MODEL).read_bytes().startswith(b"weights")

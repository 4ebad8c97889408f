"""What was done to outputs in `build/` since they were put there: by an editor, a clean-up, a training run in place."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from eulerstack.graph.store import Store, trees_of

if TYPE_CHECKING:
    from eulerstack.graph.step import Step

MOST = 6  # files named
MISSING = " is missing"
ADVICE = "to train in place, copy the directory first (cp -rL)"


def tell(step: "Step", written: dict, key: dict) -> None:
    """Say what somebody has written to since `step` made it, if its key is the same; it is about to be made good.

    What is only missing is no loss to anybody and not worth a line.
    """
    if written["key"] == key:
        for line in lines(step.place.store, written["outputs"], step.build_folder):
            if not line.endswith(MISSING):
                step.place.store.say(f"{step.name}: {line}")


def lines(store: Store, outputs: dict[str, dict], build: Path) -> list[str]:
    """A line for each output in `build` that is not as in the result with these `outputs`."""
    found = []
    for name, entry in outputs.items():
        if "/" not in name and not store.digests.is_intact(build / name, entry):
            found.append(_shown(build / name) + (" was changed" if os.path.lexists(build / name) else MISSING))
    for name, files in trees_of(outputs).items():
        path = build / name
        if not os.path.lexists(path):
            found.append(_shown(path) + MISSING)
        elif not store.is_link_to(path, store.tree(files)):
            found.append(f"{_shown(path)} is not the link to the cache that it was")
        elif changes := _changes(store, store.tree(files), files):
            more = [f"and {len(changes) - MOST} more"] if len(changes) > MOST else []
            found.append(f"{_shown(path)} was written to: {', '.join(changes[:MOST] + more)}; {ADVICE}")
    return found


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _changes(store: Store, tree: Path, files: dict[str, dict]) -> list[str]:
    if not tree.is_dir():
        return ["all of it is gone from the cache"]
    there = _there(tree)
    both = there.keys() & files.keys()
    changed = [f"{name} was changed" for name in both if not store.digests.is_intact(there[name], files[name])]
    gone = [name + MISSING for name in files.keys() - there.keys()]
    new = [f"{name} is new" for name in there.keys() - files.keys()]
    return sorted(changed) + sorted(gone) + sorted(new)


def _there(tree: Path) -> dict[str, Path]:
    """Whatever lies in a directory, and the folders in it that are empty, by relative name."""
    everything = ((path.relative_to(tree).as_posix(), path) for path in tree.rglob("*"))
    return {
        name: path for name, path in everything if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    }

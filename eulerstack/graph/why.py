"""Why a step would run again, or would not: its standing in words, with all that led to it upstream."""

import json
import os
import time
from collections.abc import Iterator

from eulerstack.digest import digest_of
from eulerstack.errors import EulerStackError
from eulerstack.graph import stamp, tampering
from eulerstack.graph.causes import ABSENT, SHOWN, Cause, causes, content_in, inside_of
from eulerstack.graph.step import Step

SAME = "its meaning is the same: a comment, or the layout"


def why(steps: list[Step], whole: bool = False) -> list[str]:
    """Lines on the last of `steps`, which have upstream first, and on those before it that are not up to date.

    `whole`: on all of them.
    """
    found: list[str] = []
    causes_of: dict[str, dict[str, str]] = {}  # step that is not up to date -> those that are to blame, and how
    for step in steps:
        below = {name: how for above in step.upstream for name, how in causes_of.get(above.name, {}).items()}
        fresh = not below and step.is_fresh()
        if not fresh:
            causes_of[step.name] = below or {step.name: _how(step)}
        if whole or not fresh or step is steps[-1]:
            found += _fresh(step) if fresh else _not_fresh(step, below)
    return found


def with_upstream(step: Step) -> list[Step]:
    """The steps that this one waits for, then itself."""
    found: dict[str, Step] = {}
    for above in step.upstream:
        found |= {one.name: one for one in with_upstream(above)}
    return [*found.values(), step]


def _fresh(step: Step) -> list[str]:
    digest = digest_of(stamp.read(step.stamp)["key"])
    skipped = f"skipped: {step.skipped_for}, " if step.note else ""
    return [f"{step.name}: {skipped}up to date since {_time(step)}, key {digest[:SHOWN]}"]


def _how(step: Step) -> str:
    """The standing of a step that is not up to date."""
    if step.failure.exists():
        return "failed in its last run"
    if stamp.read(step.stamp) is not None:
        return "is stale"
    return "has a damaged stamp" if step.stamp.exists() else "was never run"


def _not_fresh(step: Step, below: dict[str, str]) -> Iterator[str]:
    written = stamp.read(step.stamp)
    behind = " and ".join(f"{name}, which {how}" for name, how in below.items())
    yield f"{step.name}: {_how(step)}" + (f", below {behind}" if below else "")
    if step.failure.exists():
        yield from (f"  {line}" for line in _text(step).splitlines())
    if written is not None:
        yield from (f"  {line}" for line in _differences(step, written, bool(below)))


def _differences(step: Step, written: dict, below: bool) -> list[str]:
    """What is not as it was when the stamp was written. Below others, more may come to light when those have run."""
    try:
        key = step.key()
    except (EulerStackError, OSError) as error:
        return [] if below else str(error).splitlines()
    store = step.place.store
    found = [_named(step, cause, written) for cause in causes(written["key"], key, content_in(store))]
    digest = digest_of(key)
    lines = [f"key {digest_of(written['key'])[:SHOWN]} of {_time(step)} -> {digest[:SHOWN]}"] if found else []
    lines += [line for cause in found for line in cause.lines()]
    if not found:
        lines += tampering.lines(store, written["outputs"], step.build_folder)
    if found and not below and store.result(digest).exists():
        lines.append("the cache has this result: it will be restored")
    return lines


def _named(step: Step, cause: Cause, written: dict) -> Cause:
    """A cause that is the preset itself, with its file and with what it means; others as they are."""
    if cause.place != "inputs.preset":
        return cause
    path = os.path.relpath(step.preset, step.place.workspace)
    return Cause(f"{cause.place} ({path})", cause.old, cause.new, tuple(_meaning(step, written)))


def _meaning(step: Step, written: dict) -> list[str]:
    """What is different in the IR, if the earlier one is in the store."""
    entry = written["outputs"].get("normalize.json")
    earlier = content_in(step.place.store)(entry["sha256"]) if entry else ABSENT
    if not isinstance(earlier, dict) or "ir" not in earlier:
        return []
    from eulerstack.ir.normalizer import normalize_to_ir  # pydantic and yaml: only if a preset has changed
    from eulerstack.ir.types import to_dict

    try:
        now = json.loads(json.dumps(to_dict(normalize_to_ir(step.preset))))
    except EulerStackError as error:
        return str(error).splitlines()[:1]
    return inside_of(earlier["ir"], now) or [SAME]


def _time(step: Step) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(step.stamp.stat().st_mtime))


def _text(step: Step) -> str:
    try:
        return step.failure.read_text(encoding="utf-8")
    except OSError:
        return ""

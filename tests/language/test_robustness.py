"""Whatever is written, the answer is a checked document or placed problems, never another exception."""

import copy
import datetime
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eulerstack.errors import EulerStackError
from eulerstack.language.dialects import NOTES, ours
from eulerstack.language.load import Checked, check, check_source, load_preset
from eulerstack.language.source import parse

HERE = Path(__file__).parent
FILES = sorted((HERE / "valid").glob("*.yml"))
TEXTS = [path.read_text(encoding="utf-8") for path in FILES]
TREES = [load_preset(path).source.tree for path in FILES]
QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "${1/0}",
            "${let.heads}",
            "${",
            "attention",
            "inherit",
            "mamba2",
            "swiglu",
            datetime.date(2024, 1, 31),
            "\ud800",
            10**400,
        ]
    )
)
keys = (
    st.text(max_size=6)
    | st.sampled_from(["type", "mixer", "let", "template", "vendor.a.b", "window", "d_state", "scale", "bias"])
    | st.sampled_from(sorted(ours()) + sorted(NOTES))
    | st.integers()
    | st.none()
)
trees = st.recursive(scalars, lambda t: st.lists(t, max_size=3) | st.dictionaries(keys, t, max_size=3), max_leaves=12)


def judged(call, *args) -> None:
    try:
        assert isinstance(call(*args), Checked)
    except EulerStackError as error:
        problems = error.problems
    else:
        return
    assert problems
    for problem in problems:
        assert problem.what
        assert problem.fix
        assert len(str(problem).splitlines()) == 3


def check_text(text: str) -> Checked:
    return check_source(parse(text, "p.yml"))


def holders(tree, found=None):
    """Every mapping and list of a tree."""
    found = [] if found is None else found
    if isinstance(tree, dict | list) and tree:
        found.append(tree)
        for value in tree.values() if isinstance(tree, dict) else tree:
            holders(value, found)
    return found


@st.composite
def mutated_trees(draw):
    tree = copy.deepcopy(draw(st.sampled_from(TREES)))
    for _ in range(draw(st.integers(1, 3))):
        holder = draw(st.sampled_from(holders(tree)))
        where = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
        act = draw(st.sampled_from(["delete", "replace", "rename", "double"]))
        if act == "delete":
            del holder[where]
        elif act == "replace" or isinstance(holder, list):
            holder[where] = draw(trees)
        elif act == "rename":
            holder[draw(keys)] = holder.pop(where)
        else:
            holder[draw(keys)] = copy.deepcopy(holder[where])
    return tree


@st.composite
def mutated_texts(draw):
    lines = draw(st.sampled_from(TEXTS)).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        act = draw(st.sampled_from(["delete", "double", "indent", "insert", "cut"]))
        if act == "delete":
            del lines[at]
        elif act == "double":
            lines.insert(at, lines[at])
        elif act == "indent":
            lines[at] = draw(st.sampled_from([" ", "  ", "\t", "- "])) + lines[at]
        elif act == "insert":
            column = draw(st.integers(0, len(lines[at])))
            lines[at] = (
                lines[at][:column]
                + draw(st.text(alphabet="{}[]:,&*!|>'\"%@`#-? \t\0é0", max_size=3))
                + lines[at][column:]
            )
        else:
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
        lines = lines or [""]
    return "\n".join(lines) + "\n"


@QUIET
@given(trees)
def test_any_tree(tree):
    judged(check, tree)


@QUIET
@given(mutated_trees())
def test_a_mutated_tree(tree):
    judged(check, tree)


@QUIET
@given(mutated_texts())
def test_a_mutated_text(text):
    judged(check_text, text)


@QUIET
@given(st.text(max_size=60) | st.text(alphabet="ab01:-[]{}&*!|>'\"%\n \t<?.~", max_size=60))
def test_any_text(text):
    judged(check_text, text)


@settings(QUIET, max_examples=40)
@given(mutated_trees())
def test_a_mutated_tree_as_a_file(tree):
    judged(check_text, yaml.safe_dump(tree, allow_unicode=True))


@QUIET
@given(st.binary(max_size=80))
def test_any_bytes(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("bytes") / "p.yml"
    file.write_bytes(content)
    judged(load_preset, file)


BOMBS = {
    "flow": "[" * 100_000,
    "braces": "{a: " * 50_000,
    "blocks": "\n".join(" " * i + "a:" for i in range(600)),
    "dashes": "- " * 60_000,
    "brackets in an expression": "let: {a: '${" + "(" * 100_000 + "'}",
    "signs": "let: {a: '${" + "-" * 100_000 + "1}'}",
    "anchors": "\n".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" if i else "a0: &a0 x" for i in range(60)),
    "merges": "\n".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" if i else "a0: &a0 {x: 1}" for i in range(60)),
    "digits": "schema_version: " + "9" * 100_000,
    "keys": "\n".join(f"k{i}: 1" for i in range(12_000)),
    "a long key": "? " + "k" * 200_000 + "\n: 1",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_time(name):
    started = time.process_time()
    judged(check_text, BOMBS[name])
    assert time.process_time() - started < 20

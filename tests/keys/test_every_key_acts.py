"""Law 1 of the language: everything that validates runs, and no key is accepted and then ignored.

For every key of the schema there is a row in ACTS, which the files rows_of_*.py hold by subject: two or more of its
values make models that differ where docs/language.md says so, and nowhere else where that is named. A key that is not
built yet lies under a row of LATER and is refused by its name. A key that takes a single value is in ONLY. No key of
the schema is in none of them.
"""

import re
from itertools import combinations
from pathlib import Path
from runpy import run_path
from typing import Any, Literal, get_args, get_origin

import pytest

from eulerstack.compiler.runtime import unbuilt
from eulerstack.errors import ValidationError
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.language.load import check

FOLDER = Path(__file__).parent
T, A = (run_path(str(FOLDER / "rows.py"))[name] for name in "TA")
ACTS = [row for path in sorted(FOLDER.glob("rows_of_*.py")) for row in run_path(str(path))["ACTS"]]

# Keys that say one thing only, and what else they could wrongly say.
ONLY = {"schema_version": 2, "embedding.type": "fourier"}

# The words of an enumeration that is built in part which are not built yet; LATER has them in use.
LATER_WORDS = {
    "compatibility.compile_target": {"native"},
}
# A subtree of keys that no modeling code builds yet: a preset that uses it, and the word of the refusal.
LATER = {
    "compatibility.compile_target": ({"compatibility.compile_target": "native"}, "native"),
}


def name_of(row) -> str:
    return f"{row.key}-{row.shows}"


@pytest.mark.parametrize("row", ACTS, ids=name_of)
def test_a_key_acts(row, preset, observe, alike):
    trees = [preset(row.given | {row.key: value}) for value in row.values]
    seen = [observe(row.shows, tree) for tree in trees]
    for (i, a), (j, b) in combinations(enumerate(seen), 2):
        assert not alike(a, b), f"{row.values[i]} and {row.values[j]} give the same {row.shows}"
    for other in row.same:
        first, *rest = (observe(other, tree) for tree in trees)
        assert all(alike(first, again) for again in rest), f"the values differ in {other}"
    for value in row.alike:
        again = observe(row.shows, preset(row.given | {row.key: value}))
        assert alike(seen[0], again), f"{value} is not as {row.values[0]}"


@pytest.mark.parametrize("key", LATER)
def test_a_key_that_is_not_built_is_refused_by_its_name(key, preset):
    values, word = LATER[key]
    (problem,) = unbuilt(normalize_to_ir(preset(values)))
    assert problem.category == "CompileError"
    assert word in f"{problem.where}: {problem.what}"
    assert "not built yet" in problem.what


@pytest.mark.parametrize("key", ONLY)
def test_a_key_says_one_thing_only(key, preset):
    check(preset({}))
    with pytest.raises(ValidationError, match=key):
        check(preset({key: ONLY[key]}))


def test_a_variable_acts(preset, observe):
    trees = [preset({"let": {"w": value}, f"{A}.window": "${let.w}"}) for value in (3, 5)]
    assert not observe("logits", trees[0]).equal(observe("logits", trees[1]))


def is_under(key: str, root: str) -> bool:
    return key == root or key.startswith((f"{root}.", f"{root}[", f"{root}<"))


def values_of(key: str) -> list[Any]:
    """Every value that a row gives to a key, alone or within a block."""
    rows = [value for row in ACTS if row.key == key for value in (*row.values, *row.alike)]
    *_, parent, last = ["", *key.rsplit(".", 1)]
    parent = re.sub(r"<\w+>$", "", parent) if last == "type" else parent
    within = [value for row in ACTS if row.key == parent for value in row.values]
    return rows + [value[last] for value in within if isinstance(value, dict) and last in value]


def test_no_key_of_the_schema_is_left_out(schema):
    blocks = {f"{T}.{part}" for part in ("mixer", "ffn", "residual", "ffn<moe>.moe.routing")}
    blocks |= {"tokenizer_contract", "head", "transition"}
    blocks |= {"embedding.rope_scaling", f"{A}.compression", "layer_schedule[].merge"}
    later = {key for key in schema if any(is_under(key, root) for root in LATER)}
    left = [key for key in schema if not values_of(key) and key not in {*later, *ONLY, "let.*"}]
    assert left == []
    assert {row.key for row in ACTS} - blocks <= schema.keys()
    assert all(any(is_under(key, root) for key in schema) for root in LATER)


def test_every_word_of_an_enumeration_has_its_row(schema):
    for key, kinds in schema.items():
        words = {word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)}
        later = LATER_WORDS.get(key, set())
        if words and key not in ONLY and not any(is_under(key, root) and root != key for root in LATER):
            assert words - {v for v in values_of(key) if isinstance(v, str)} <= later, key

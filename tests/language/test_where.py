"""Addresses as text, and the section that explains each."""

import pytest

from eulerstack.language.where import dotted, leaves, see


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ((), ""),
        (("a", 0, "b.c", 1, 2), "a[0].b.c[1][2]"),
        (("a b", "x\ny"), r"'a b'.'x\ny'"),
        (("", "k"), "''.k"),
        (("x" * 200,), "'" + "x" * 77 + "...'"),
    ],
)
def test_dotted(where, text):
    assert dotted(where) == text


@pytest.mark.parametrize(
    ("where", "section"),
    [
        (None, "yaml"),
        ((), "top-level"),
        (("schema_version",), "top-level"),
        (("bogus", "mixer"), "top-level"),
        (("model", "n_heads"), "model"),
        (("layer_templates",), "layer_templates"),
        (("layer_templates", "mixer"), "layer_templates"),
        (("layer_templates", "a", "bogus"), "layer_templates"),
        (("layer_templates", "a", "ffn", "moe", "top_k"), "ffn"),
        (("layer_schedule", 0), "layer_schedule"),
    ],
)
def test_see(where, section):
    assert see(where) == f"docs/language.md#{section}"


def test_leaves_are_values_with_their_address():
    tree = {"a": {"b": 1, "c": {"d": [2]}}, "e": None}
    assert list(leaves(tree)) == [("a.b", 1), ("a.c.d", [2]), ("e", None)]

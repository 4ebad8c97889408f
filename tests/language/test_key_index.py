"""The index at the end of the spec reference names every key at its place, as the schema has it."""

import re
from pathlib import Path

import pytest

from eulerstack.language.key_index import blocks, index, rewritten
from eulerstack.language.schema_json import json_schema
from eulerstack.language.tables import named_blocks

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "03_spec_reference.md"
ROW = re.compile(r"^\| \[`(\w+)`\]\(page\.md#([\w-]+)\) \| (.+?) \| (.+) \| (.+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def schema():
    return json_schema()


@pytest.fixture(scope="module")
def rows(schema):
    return [found.groups() for found in ROW.finditer(index("page.md", schema))]


def test_the_index_of_the_tutorial_is_that_of_the_schema(schema):
    text = TUTORIAL.read_text(encoding="utf-8")
    assert "<!-- index: ../language.md -->" in text
    assert rewritten(text, schema) == text, f"run: eulerstack schema --tables {TUTORIAL}, and keep what it prints"


def test_every_key_of_every_block_has_a_row(schema, rows):
    expected = sorted(key for block in named_blocks(schema).values() for key in block["properties"])
    assert [key for key, *_ in rows] == expected
    assert len(set(rows)) == len(rows) == sum(len(block["properties"]) for _, block in blocks(schema))


def test_what_a_row_says(rows):
    assert ("window", "mixer", "`mixer.attention`", "int > 0", "none") in rows
    assert (
        "window",
        "layer_schedule",
        "`layer_schedule[].override.attention`",
        "int > 0 or `inherit`",
        "`inherit`",
    ) in rows
    assert ("activation", "ffn", "`ffn mlp`", "`gelu`, `gelu_tanh`, `relu`, `relu2`", "`gelu`") in rows
    assert ("let", "top-level", "the top", "name -> number", "no names") in rows
    assert ("token", "transition", "`transition`", "text", "none") in rows
    assert (
        "norm",
        "layer_templates",
        "`layer_templates.<name>`",
        "`{type, position, unit_offset, bias}`",
        "`rmsnorm`",
    ) in rows


def test_a_stale_index_is_put_right(schema):
    stale = "a\n<!-- index: page.md -->\n| old |\n<!-- end -->\nb\n"
    fresh = rewritten(stale, schema)
    assert fresh == f"a\n<!-- index: page.md -->\n\n{index('page.md', schema)}\n<!-- end -->\nb\n"
    assert rewritten(fresh, schema) == fresh
    assert rewritten("no place for it\n", schema) == "no place for it\n"

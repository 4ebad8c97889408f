"""The reference shows every key of every block as the schema has it."""

import re
from pathlib import Path

import pytest

from eulerstack.language.schema_json import json_schema
from eulerstack.language.tables import marked, named_blocks, rewritten, table

REFERENCE = Path(__file__).parents[2] / "docs" / "language.md"
ROW = re.compile(r"^\| `([\w.[\]]+)`(?: \*\*ext\*\*)? \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def schema():
    return json_schema()


@pytest.fixture(scope="module")
def text():
    return REFERENCE.read_text(encoding="utf-8")


def test_every_block_has_one_table(schema, text):
    assert sorted(marked(text)) == sorted(named_blocks(schema))


def test_the_tables_are_those_of_the_schema(schema, text):
    assert rewritten(text, schema) == text, "run: eulerstack schema --tables docs/language.md, and keep what it prints"


def test_every_key_has_a_value_a_default_and_a_meaning(schema):
    for name, block in named_blocks(schema).items():
        rows = ROW.findall(table([name], schema))
        assert [key for key, *_ in rows] == list(block["properties"]), name
        assert all(all(cells) for cells in rows), [row for row in rows if not all(row)]


def test_every_key_of_every_block_stands_in_the_reference(schema, text):
    """A block within another has its rows there, so in all there are as many as the schema has keys."""
    tables = re.findall(r"<!-- keys: [\w. ]+ -->\n(.*?)<!-- end -->", text, re.DOTALL)
    shown = [key.rpartition(".")[2] for rows in tables for key, *_ in ROW.findall(rows)]
    assert sorted(shown) == sorted(key for block in named_blocks(schema).values() for key in block["properties"])


def test_a_block_within_another_follows_its_key(schema):
    keys = [key for key, *_ in ROW.findall(table(["Parallel", "Stream", "BodyItem", "Indexer"], schema))]
    streams = ["parallel[].stream", "parallel[].body", "parallel[].body[].template", "parallel[].body[].repeat"]
    assert keys == ["parallel", *streams, "merge", "arch", "n_heads", "d_per_head", "dtype"]


def test_keys_beyond_the_first_language_are_marked(schema):
    marks = {
        name: set(re.findall(r"^\| `(\w+)` \*\*ext", table([name], schema), re.M)) for name in named_blocks(schema)
    }
    assert marks["Model"] == {"head_dim", "d_ff", "norm_eps"}
    assert marks["InitOptions"] == {"std", "scheme"}
    assert marks["Hyena"] == {"short_conv"}
    assert marks["mixers.none"] == marks["ffns.none"] == {"type"}
    assert marks["Sinks"] == marks["Compression"] == marks["Routing"] == set()


def test_a_stale_or_edited_table_is_put_right(schema):
    stale = "a\n<!-- keys: Sinks -->\n| `n_per_head` | int |\n<!-- end -->\nb\n"
    fresh = rewritten(stale, schema)
    assert fresh.startswith("a\n<!-- keys: Sinks -->\n\n| key | value | default | meaning |\n")
    assert "| `n_per_head` | int >= 0 | `1` |" in fresh
    assert fresh.endswith("\n<!-- end -->\nb\n")
    assert rewritten(fresh, schema) == fresh
    with pytest.raises(KeyError):
        rewritten(stale.replace("Sinks", "Sank"), schema)


def test_how_values_are_written(schema):
    rows = {
        (name, key): (value, default)
        for name in named_blocks(schema)
        for key, value, default, _ in ROW.findall(table([name], schema))
    }
    assert rows["Model", "d_model"] == ("int > 0", "required")
    assert rows["Embedding", "rope_fraction"] == ("number > 0, <= 1", "`1.0`")
    assert rows["Norm", "type"] == ("`rmsnorm`, `layernorm`", "`rmsnorm`")
    assert rows["AttentionOverride", "window"] == ("int > 0 or `inherit`", "`inherit`")
    assert rows["Residual", "hyper"] == ("`{expand, mixing, sinkhorn_iters}`", "none")
    assert rows["Template", "ffn"] == ("`gated_mlp` or `mlp` or `moe` or `none`", "required")
    assert rows["Model", "n_kv_heads"] == ("int > 0", "n_heads")
    assert rows["Attention", "compression"] == ("`{type, m_block, pool, ...}`", "none")
    assert rows["Moe", "bias_correction"] == ("`{enabled, update_rate, target_imbalance}`", "its defaults")
    assert rows["Preset", "schema_version"] == ("`1`", "required")
    assert rows["TrainingHints", "betas"] == ("list of number >= 0, < 1", "`[0.9, 0.95]`")

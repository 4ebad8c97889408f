import json

from jsonschema import Draft202012Validator
from yaml import safe_load


def test_json_is_a_schema_that_knows_a_preset(run, own):
    said = run("schema", "--json")
    assert (said.status, said.err) == (0, "")
    schema = json.loads(said.out)
    Draft202012Validator.check_schema(schema)
    preset = safe_load((own / "presets" / "tiny.yml").read_text())
    assert list(Draft202012Validator(schema).iter_errors(preset)) == []
    preset["model"]["d_modle"] = 1
    assert list(Draft202012Validator(schema).iter_errors(preset))


def test_the_keys_by_block(run):
    said = run("schema")
    keys = dict(line.split(": ", 1) for line in said.out.splitlines())
    assert "d_model" in keys["Model"]
    assert "window" in keys["Attention"]


def test_the_schema_beside_the_docs_is_this_one(run, request):
    """Presets of the catalogue point their editor to it."""
    stored = json.loads((request.config.rootpath / "docs" / "schema.json").read_text())
    assert stored == json.loads(run("schema", "--json").out)

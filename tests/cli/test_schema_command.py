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
    lines = [line.split(": ", 1) for line in said.out.splitlines()]
    keys = dict(lines)
    assert lines[0][0] == "preset"
    assert {"schema_version", "model", "let"} < set(keys["preset"].split(", "))
    assert "d_model" in keys["model"]
    assert "window" in keys["layer_templates.<name>.mixer.attention"]
    assert "moe" in keys["layer_templates.<name>.ffn moe"]
    assert keys["layer_templates.<name>.mixer mamba"] == "type, mamba"
    assert ["layer_schedule[]", "parallel, merge"] in lines


def test_every_block_is_there_once_in_words_of_the_language(run):
    lines = run("schema").out.splitlines()
    definitions = json.loads(run("schema", "--json").out)["$defs"].values()
    assert len(lines) == len(set(lines)) == 1 + sum("properties" in definition for definition in definitions)
    places = " ".join(line.split(": ")[0] for line in lines)
    assert "__" not in places
    assert places == places.lower()


def test_the_schema_beside_the_docs_is_this_one(run, request):
    """Presets of the catalogue point their editor to it."""
    stored = json.loads((request.config.rootpath / "docs" / "schema.json").read_text())
    assert stored == json.loads(run("schema", "--json").out)

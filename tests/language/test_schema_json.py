"""The JSON Schema agrees with the checker on single fields, and knows expressions and reserved keys."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from eulerstack.errors import EulerStackError
from eulerstack.language.load import check, load_preset
from eulerstack.language.schema_json import json_schema

HERE = Path(__file__).parent
REPO = HERE.parents[1]
SHIPPED = sorted((REPO / "presets").glob("*.yml")) + sorted((REPO / "examples" / "primitives").glob("*.yml"))
VALID = sorted((HERE / "valid").glob("*.yml")) + SHIPPED
BROKEN = sorted((HERE / "broken").glob("*.yml"))


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_committed_schema_is_this_one():
    assert json.loads((REPO / "docs" / "schema.json").read_text(encoding="utf-8")) == json_schema()


@pytest.mark.parametrize("path", VALID, ids=lambda p: p.stem)
def test_valid_presets_are_valid(validator, path):
    assert [e.message for e in validator.iter_errors(load_preset(path).source.tree)] == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_the_catalogue_is_valid_as_an_editor_reads_it(validator, path):
    assert [e.message for e in validator.iter_errors(yaml.safe_load(path.read_text(encoding="utf-8")))] == []


def first_problem(path):
    with pytest.raises(EulerStackError) as caught:
        load_preset(path)
    return caught.value.problems[0]


# Of single fields, JSON Schema cannot say: an arithmetic error, and that 256.0 is no integer.
BEYOND_JSON = {"float_for_int", "negative_dropout", "rope_factor_zero", "five_thousand_experts", "infinite_eps"}
FIELDS = [p for p in BROKEN if "ValidationError" in p.read_text().splitlines()[0] and not p.stem.startswith("let_")]


@pytest.mark.parametrize("path", [p for p in FIELDS if p.stem not in BEYOND_JSON], ids=lambda p: p.stem)
def test_a_wrong_field_is_invalid(validator, path):
    assert first_problem(path).category == "ValidationError"
    data = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    assert list(validator.iter_errors(data))


def test_there_are_many_wrong_fields():
    assert len(FIELDS) - len(BEYOND_JSON) >= 15


def test_expressions_stand_for_numbers_only(validator, plain):
    plain["let"] = {"w": "${8 * 8}"}
    plain["model"]["d_model"] = "${let.w * 4}"
    plain["embedding"]["rope_fraction"] = "${1 / 2}"
    assert list(validator.iter_errors(plain)) == []
    check(plain)
    plain["embedding"]["positional"] = "${1}"
    assert [e.path[-1] for e in validator.iter_errors(plain)] == ["positional"]


@pytest.mark.parametrize("key", ["experimental.x", "future.y", "vendor.acme.z"])
def test_reserved_keys_are_valid_anywhere(validator, plain, key):
    for holder in (plain, plain["model"], plain["layer_templates"], plain["layer_templates"]["block"]["mixer"]):
        data = copy.deepcopy(plain)
        holder[key] = {"any": "thing"}
        assert list(validator.iter_errors(plain)) == [], data


def test_branches_are_mixers(validator, plain):
    mixer = {"type": "branched", "branched": {"branches": {"a": {"type": "attention"}, "b": {"type": "mamba"}}}}
    plain["layer_templates"]["block"]["mixer"] = mixer
    assert list(validator.iter_errors(plain)) == []
    mixer["branched"]["branches"]["b"] = {"type": "mamba", "mamba": {"bogus": 1}}
    assert list(validator.iter_errors(plain))


def test_the_schema_describes_itself():
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"]
    assert schema["description"]

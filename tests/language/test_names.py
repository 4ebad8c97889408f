"""Names of templates and streams, looked up whatever else is wrong."""

import pytest

from eulerstack.errors import EulerStackError
from eulerstack.language.load import check, check_source
from eulerstack.language.names import mentions
from eulerstack.language.source import parse


def problems(data: dict) -> set[str]:
    with pytest.raises(EulerStackError) as caught:
        check(data)
    return {f"{p.where}: {p.what}" for p in caught.value.problems}


@pytest.fixture
def named(plain):
    """A document that names a template in every way."""
    streams = [{"stream": name, "body": [{"template": "block"}]} for name in "ab"]
    merge = {"type": "cross_attn", "from": "a", "to": "b"}
    integrator = {"integrator": {"type": "discrete", "steps": 2, "body": "block"}}
    plain["layer_schedule"] += [{"parallel": streams, "merge": merge}, integrator]
    plain["head"] = {"type": "causal_lm_mtp", "mtp": {"head_template": "block"}}
    return plain


def test_the_names_are_sound(named):
    check(named)
    assert [name for _, name in mentions(named)] == ["block"] * 5


def test_a_template_that_bears_another_name(named):
    named["layer_templates"]["blok"] = named["layer_templates"].pop("block")
    assert problems(named) == {
        "layer_schedule[0].template: no template 'block'",
        "layer_schedule[1].parallel[0].body[0].template: no template 'block'",
        "layer_schedule[1].parallel[1].body[0].template: no template 'block'",
        "layer_schedule[2].integrator.body: no template 'block'",
        "head.mtp.head_template: no template 'block'",
    }


def test_names_beside_wrong_fields(named):
    named["model"].pop("vocab_size")
    named["layer_schedule"][0] = {"template": "blok", "repeat": "2"}
    named["layer_schedule"][1]["merge"] |= {"from": "c", "bogus": 1}
    assert problems(named) == {
        "model.vocab_size: required key is missing",
        "layer_schedule[0].repeat: expected an integer above 0, found '2'",
        "layer_schedule[0].template: no template 'blok'",
        "layer_schedule[1].merge.from: no stream 'c'",
        "layer_schedule[1].merge.bogus: unknown key",
    }


@pytest.mark.parametrize("templates", [None, {}, 4, []], ids=repr)
def test_names_of_templates_that_cannot_be_read(plain, templates):
    plain["layer_templates"] = templates
    assert not any("no template" in problem for problem in problems(plain))


def test_a_name_that_is_no_name(named):
    named["layer_schedule"][0]["template"] = 4
    named["layer_schedule"][1]["merge"]["to"] = ""
    assert {p.split(":")[0] for p in problems(named)} == {"layer_schedule[0].template", "layer_schedule[1].merge.to"}
    assert not any(" no " in problem for problem in problems(named))


def test_streams_without_names(named):
    named["layer_schedule"][1]["parallel"][0]["stream"] = 4
    assert not any("no stream" in problem for problem in problems(named))


def test_a_key_that_is_no_text_may_be_the_template_that_is_missing(plain):
    plain["layer_templates"][4] = plain["layer_templates"]["block"]
    plain["layer_schedule"][0]["template"] = "4"
    assert not any("no template" in problem for problem in problems(plain))


def test_a_name_that_could_not_be_read():
    tree = parse("layer_templates: {a: 1}\nlayer_schedule: [{template: 017}]\n", "p.yml")
    assert ("layer_schedule", 0, "template") in tree.unread
    with pytest.raises(EulerStackError) as caught:
        check_source(tree)
    assert not any("no template" in p.what for p in caught.value.problems)


@pytest.mark.parametrize("broken", [[4], [None], [{"parallel": 4}], [{"parallel": [4, {"body": 4}]}], 4])
def test_schedules_of_any_shape(broken):
    assert list(mentions({"layer_schedule": broken, "head": {"mtp": 4}})) == []

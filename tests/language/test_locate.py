"""From pydantic's addresses to ours."""

import pytest

from eulerstack.language.locate import choices_of, fields_of, locate, members, tags_of
from eulerstack.language.schedule import Merge
from eulerstack.language.template import FFNS, MIXERS, Mixer

TEMPLATE = ("layer_templates", "a")
LOCATIONS = [
    (("model", "bogus"), ("model", "bogus"), "Model"),
    ((*TEMPLATE, "mixer"), (*TEMPLATE, "mixer"), "Template"),
    ((*TEMPLATE, "mixer", "attention", "bogus"), (*TEMPLATE, "mixer", "bogus"), "Block"),
    ((*TEMPLATE, "mixer", "attention", "attention", "scale"), (*TEMPLATE, "mixer", "attention", "scale"), "Attention"),
    (
        (*TEMPLATE, "mixer", "branched", "branched", "branches", "x", "mamba", "mamba", "expand"),
        (*TEMPLATE, "mixer", "branched", "branches", "x", "mamba", "expand"),
        "Mamba",
    ),
    (("layer_schedule", 3, "plain", "repeat"), ("layer_schedule", 3, "repeat"), "Plain"),
    (("layer_schedule", 3, "parallel", "parallel", 0, "body"), ("layer_schedule", 3, "parallel", 0, "body"), "Stream"),
    (("training_hints", "init", "InitOptions", "std"), ("training_hints", "init", "std"), "InitOptions"),
    (("training_hints", "init", "literal['normal_0.02']"), ("training_hints", "init"), "TrainingHints"),
    (("training_hints", "betas", 1), ("training_hints", "betas", 1), None),
    (("layer_templates", "", "[key]"), ("layer_templates", ""), None),
]


@pytest.mark.parametrize(("loc", "where", "owner"), LOCATIONS)
def test_locate(loc, where, owner):
    at = locate(loc)
    assert at.where == where
    assert (at.owner.__name__ if at.owner else None) == owner


def test_keys_are_spelled_as_in_the_file():
    assert "from" in fields_of(Merge)
    assert "from_" not in fields_of(Merge)


def test_a_union_offers_its_blocks():
    assert members(Mixer) == list(MIXERS.values())


def test_a_file_is_named_for_the_type_it_defines():
    for family in (MIXERS, FFNS):
        for name, block in family.items():
            assert tags_of(block) == (name,)


def test_choices():
    assert "swiglu" in choices_of(FFNS["gated_mlp"], "activation")
    assert "swiglu" not in choices_of(FFNS["mlp"], "activation")
    assert choices_of(FFNS["none"], "activation") == []

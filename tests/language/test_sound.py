"""The sound part of a document that is wrong somewhere."""

import copy

import pydantic
import pytest

from eulerstack.errors import EulerStackError
from eulerstack.language.load import check
from eulerstack.language.sound import NEUTRAL, read, sound_part


def test_a_sound_document_is_its_own_part(plain):
    assert sound_part(plain, ()) == read(plain)


def test_a_wrong_field_is_refused(plain):
    plain["model"]["d_model"] = "256"
    with pytest.raises(pydantic.ValidationError):
        read(plain)


def test_keys_that_can_go(plain):
    before = copy.deepcopy(plain)
    plain["model"]["bogus"] = 1
    given = copy.deepcopy(plain)
    assert sound_part(plain, [("model", "bogus"), ("nowhere", 4, "x"), ("layer_schedule", 7, "x"), ()]) == read(before)
    assert plain == given


def test_a_template_goes_where_its_key_cannot(plain):
    plain["layer_templates"]["other"] = {"mixer": {"type": "hyena"}}
    assert list(sound_part(plain, ()).layer_templates) == ["block"]
    del plain["layer_templates"]["block"]["ffn"]
    assert list(sound_part(plain, ()).layer_templates) == list(NEUTRAL)


@pytest.mark.parametrize("block", ["model", "layer_schedule", "head"])
def test_nothing_is_left_without_a_required_block(plain, block):
    del plain[block]
    assert sound_part(plain, ()) is None


def test_a_wrong_template_and_a_wrong_block_leave_nothing(plain):
    plain["layer_templates"]["block"] = 4
    del plain["head"]
    assert sound_part(plain, ()) is None


def test_sound_fields_are_held_against_each_other_beside_a_wrong_type(plain):
    plain["layer_templates"]["block"]["mixer"] = {"type": "atention"}
    plain["layer_templates"]["other"] = {
        "mixer": {"type": "mamba"},
        "ffn": {"type": "mlp"},
        "state": {"kv_cache": True},
    }
    plain["model"]["n_kv_heads"] = 3
    with pytest.raises(EulerStackError) as caught:
        check(plain)
    assert [p.where for p in caught.value.problems] == [
        "layer_templates.block.mixer.type",
        "model.n_kv_heads",
        "layer_templates.other.state.kv_cache",
    ]


def test_the_stand_in_for_all_templates_breaks_no_rule(plain):
    plain["layer_templates"]["block"]["ffn"] = {"type": "swiglu"}
    with pytest.raises(EulerStackError) as caught:
        check(plain)
    assert [p.where for p in caught.value.problems] == ["layer_templates.block.ffn.type"]

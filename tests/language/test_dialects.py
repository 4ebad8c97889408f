"""The words of other dialects, held against the schema that they are translated to."""

import json
from itertools import combinations

import pytest
import yaml
from pydantic import TypeAdapter

from eulerstack.language.dialects import KEYS, NOTES, REMARKS, SAME, TYPES, ours, plain, same_word, synonyms, type_of
from eulerstack.language.locate import choices, fields_of
from eulerstack.language.places import places
from eulerstack.language.schema import Spec
from eulerstack.language.template import FFNS, MIXERS, RESERVED_MIXERS, Ffn, Mixer

ADAPTERS = {"mixer": TypeAdapter(Mixer), "ffn": TypeAdapter(Ffn)}
FAMILIES = {"mixer": MIXERS, "ffn": FFNS}
SNIPPETS = [(family, word) for family, words in TYPES.items() for word in words]


@pytest.mark.parametrize("address", KEYS)
def test_the_key_that_a_word_is_translated_to_exists(address):
    assert address in {place.address for place in places()}


@pytest.mark.parametrize("address", KEYS)
def test_a_word_of_others_is_no_key_of_the_same_block(address):
    owners = {place.owner for place in places() if place.address == address}
    words = KEYS[address].split()
    assert len(words) == len(set(words))
    for word in words:
        assert not any(word in fields_of(owner) for owner in owners), word


def test_words_are_found_by_themselves():
    assert ours()["hidden_size"] == ["model.d_model"]
    assert len(ours()["intermediate_size"]) == 2


def test_what_has_a_note_is_no_key_of_the_top_or_of_the_model():
    assert "layer_schedule" in fields_of(Spec)
    for word, note in NOTES.items():
        assert word not in fields_of(Spec)
        assert "layer_schedule" in note


@pytest.mark.parametrize(("family", "word"), SNIPPETS)
def test_the_snippet_of_a_type_is_a_block(family, word):
    written = yaml.safe_load("{" + TYPES[family][word] + "}")
    assert ADAPTERS[family].validate_json(json.dumps(written)).type == written["type"]


@pytest.mark.parametrize(("family", "word"), SNIPPETS)
def test_a_translated_type_is_no_type(family, word):
    assert plain(word) not in {plain(own) for own in (*FAMILIES[family], *RESERVED_MIXERS)}
    assert type_of(word.upper().replace("_", "-"), family)[0] == TYPES[family][word]


def test_remarks_are_of_types():
    assert REMARKS.keys() <= {word for words in TYPES.values() for word in words}
    assert type_of("gqa", "mixer") == ("type: attention", ", with model.n_kv_heads below n_heads")


@pytest.mark.parametrize("word", ["none_of_these", 5, None, [], True])
def test_an_unknown_type(word):
    assert type_of(word, "mixer") == type_of("gqa", "") == ("", "")
    assert same_word(word, ["5", "null", "True", "rope"]) == ""


def test_one_word_of_those_that_say_the_same_is_ours():
    known = {word for place in places() for word in choices(fields_of(place.owner)[place.path[-1]].annotation)}
    for group in SAME:
        assert set(group.split()) & known, group
    for one, other in combinations(SAME, 2):
        assert not set(map(plain, one.split())) & set(map(plain, other.split()))
    assert synonyms()["bf16"] == {"bf16", "bfloat16"}


@pytest.mark.parametrize(
    ("word", "known", "ours"),
    [
        ("RMSNorm", ["layernorm", "rmsnorm"], "rmsnorm"),
        ("layer_norm", ["layernorm", "rmsnorm"], "layernorm"),
        ("LN", ["layernorm", "rmsnorm"], "layernorm"),
        ("bf16", ["float32", "float16", "bfloat16"], "bfloat16"),
        ("FP16", ["float32", "float16", "bfloat16"], "float16"),
        ("fp32", ["float32", "float16", "bfloat16"], "float32"),
        ("bfloat16", ["fp4", "bf16"], "bf16"),
        ("silu", ["geglu", "swiglu"], "swiglu"),
        ("SwiGLU", ["gelu", "relu"], ""),
        ("", ["rope"], ""),
    ],
)
def test_same_word(word, known, ours):
    assert same_word(word, known) == ours

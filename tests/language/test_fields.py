"""Single fields: what the language accepts, refuses and calls it."""

import copy

import pytest
import yaml

from eulerstack.errors import EulerStackError
from eulerstack.language.fields import EXAMPLES
from eulerstack.language.load import check, check_source
from eulerstack.language.source import parse


def problems(data):
    with pytest.raises(EulerStackError) as caught:
        check(data)
    return [(p.where, p.what) for p in caught.value.problems]


def test_all_problems_of_a_document_at_once(plain):
    del plain["model"]["d_model"]
    plain["model"]["nheads"] = 4
    plain["embedding"]["rope_theta"] = "1e4"
    plain["layer_templates"]["block"]["ffn"]["activation"] = "swish"
    plain["layer_schedule"].append({"repeat": 2})
    plain["head"]["type"] = "masked_lm"
    assert {where for where, _ in problems(plain)} == {
        "layer_schedule[1]",
        "model.d_model",
        "model.nheads",
        "embedding.rope_theta",
        "layer_templates.block.ffn.activation",
        "head.type",
    }


INTEGERS = ["8", True, 8.0, None, [], {}, "x", 0, -8, 1e9]


@pytest.mark.parametrize("value", INTEGERS, ids=repr)
def test_an_integer_is_an_integer(plain, value):
    plain["model"]["d_model"] = value
    ((where, what),) = problems(plain)
    assert where == "model.d_model"
    assert what.startswith("expected an integer above 0, found")


@pytest.mark.parametrize("value", ["4", True, None, 0, -1, float("inf"), float("nan"), []], ids=repr)
def test_a_number_is_a_number(plain, value):
    plain["model"]["mlp_ratio"] = value
    ((_, what),) = problems(plain)
    assert what.startswith("expected a number above 0, found")


@pytest.mark.parametrize("value", [1, 0, "true", "yes", None, []], ids=repr)
def test_a_flag_is_a_flag(plain, value):
    plain["head"]["tie_weights"] = value
    ((_, what),) = problems(plain)
    assert what.startswith("expected true or false, found")


@pytest.mark.parametrize("value", [1, True, None, "", ["x"]], ids=repr)
def test_a_name_is_text(plain, value):
    plain["model"]["name"] = value
    ((_, what),) = problems(plain)
    assert what.startswith("expected text that is not empty, found")


def test_an_integer_is_a_number(plain):
    plain["model"]["mlp_ratio"] = 3
    assert check(plain).spec.model.mlp_ratio == 3.0


@pytest.mark.parametrize("value", [None, [], {}, 1, "ssm"], ids=repr)
def test_a_block_is_a_mapping_with_its_keys(plain, value):
    for key in ("model", "tokenizer_contract", "embedding", "layer_templates", "layer_schedule", "head"):
        data = copy.deepcopy(plain)
        data[key] = value
        assert {where.split(".")[0] for where, _ in problems(data)} == {key}


def test_branches_are_checked_like_mixers(plain):
    branches = {"a": {"type": "attention", "attention": {"windw": 1}}, "b": {"type": "gla"}, "c": 4, "d": {}}
    plain["layer_templates"]["block"]["mixer"] = {"type": "branched", "branched": {"branches": branches}}
    at = "layer_templates.block.mixer.branched.branches"
    assert problems(plain) == [
        (f"{at}.a.attention.windw", "unknown key"),
        (f"{at}.b.type", "'gla' is reserved for a later version"),
        (f"{at}.c", "expected a mapping, found 4"),
        (f"{at}.d.type", "required key is missing"),
    ]


def test_a_wrong_type_hides_no_key_that_no_type_has(plain):
    at, mixer = "layer_templates.block.mixer", {"d_state": 3, "mamba": {}}
    expected = "expected one of attention, branched, hyena, mamba, none, retnet, ttt_layer, found "
    for kind, what in {"mamba2": expected + "'mamba2'", "zzz": expected + "'zzz'"}.items():
        plain["layer_templates"]["block"]["mixer"] = {"type": kind} | mixer
        assert problems(plain) == [(f"{at}.type", what), (f"{at}.d_state", "unknown key")]
    plain["layer_templates"]["block"]["mixer"] = mixer
    assert problems(plain) == [(f"{at}.type", "required key is missing"), (f"{at}.d_state", "unknown key")]


def test_a_type_that_could_not_be_read_is_told_once(plain):
    text = yaml.safe_dump(plain).replace("type: attention", "type: 017\n      window: 8")
    with pytest.raises(EulerStackError) as caught:
        check_source(parse(text, "p.yml"))
    assert [(p.category, p.where.rpartition(".")[2]) for p in caught.value.problems] == [
        ("ParseError", "type"),
        ("ValidationError", "window"),
    ]


WORDS = [
    ("mixer", "mamba1", "write `{type: mamba, mamba: {variant: mamba1}}`"),
    ("mixer", "gqa", "write `{type: attention}`, with model.n_kv_heads below n_heads"),
    ("mixer", "retnet", "write `{type: retnet}`"),
    ("ffn", "GeGLU", "write `{type: gated_mlp, activation: geglu}` (it is an activation)"),
]


@pytest.mark.parametrize(("key", "word", "fix"), WORDS)
def test_a_word_for_a_block(plain, key, word, fix):
    plain["layer_templates"]["block"][key] = word
    with pytest.raises(EulerStackError) as caught:
        check(plain)
    assert [p.fix for p in caught.value.problems] == [fix]


ACTIVATIONS = [
    ("mlp", "SwiGLU", "it belongs to type gated_mlp or moe. "),
    ("mlp", "gelu_new", "did you mean 'gelu_tanh'? "),
    ("gated_mlp", "silu", "did you mean 'swiglu'? "),
]


@pytest.mark.parametrize(("kind", "word", "fix"), ACTIVATIONS)
def test_an_activation_in_other_words(plain, kind, word, fix):
    plain["layer_templates"]["block"]["ffn"] = {"type": kind, "activation": word}
    with pytest.raises(EulerStackError) as caught:
        check(plain)
    (problem,) = caught.value.problems
    assert problem.fix.startswith(f"{fix}write one of 'gelu'" if kind == "mlp" else fix)


@pytest.mark.parametrize("kind", ["gated_deltanet", "gla", "rwkv7", "lightning"])
def test_reserved_mixers_say_so(plain, kind):
    plain["layer_templates"]["block"]["mixer"] = {"type": kind, kind: {}}
    assert problems(plain) == [("layer_templates.block.mixer.type", f"{kind!r} is reserved for a later version")]


def test_an_init_that_is_neither(plain):
    plain["training_hints"] = {"init": 5}
    assert problems(plain) == [("training_hints.init", "expected 'normal_0.02' or a mapping, found 5")]


def test_an_init_with_a_wrong_key(plain):
    plain["training_hints"] = {"init": {"sdt": 5}}
    assert problems(plain) == [("training_hints.init.sdt", "unknown key")]


def test_empty_names(plain):
    plain["layer_templates"][""] = plain["layer_templates"]["block"]
    assert problems(plain) == [("layer_templates.''", "a name must not be empty")]


def test_the_fix_of_a_missing_key_can_be_pasted(plain):
    block = plain["layer_templates"]["block"]
    for owner, keys in ((plain, sorted(EXAMPLES.keys() & plain.keys())), (block, ["mixer", "ffn"])):
        for key in keys:
            given = owner.pop(key)
            with pytest.raises(EulerStackError) as caught:
                check(plain)
            (problem,) = caught.value.problems
            assert problem.what == "required key is missing"
            pasted = problem.fix.removeprefix("add `").removesuffix("`").replace("<name>", "block")
            owner.update(yaml.safe_load(pasted))
            check(plain)
            owner[key] = given
    assert EXAMPLES.keys() <= plain.keys() | block.keys()


def test_many_problems_are_found_fast(plain):
    plain["layer_schedule"] = [{"template": 1, "bogus": 2} for _ in range(3000)]
    assert len(problems(plain)) == 6000

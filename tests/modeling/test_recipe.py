"""Which way of decoding a call gets."""

import pytest
import torch

from eulerstack.modeling import recipe
from eulerstack.modeling.cache import FIELD

IDS = torch.randint(2, 67, (2, 5), generator=torch.Generator().manual_seed(0))
CALL = {"attention_mask": torch.ones_like(IDS), "max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None}
MODES = [
    {"name": name, "max_tokens": 3, "kv_share": True, "visible_to_user": name == "answer", "loss_weight": 1.0}
    for name in ("think", "answer")
]


@pytest.fixture
def model(payload, block, build):
    mtp = {"n_predict": 1, "head_layers": 1, "kind": "kind0", "train_loss_weight": 0.1}
    return build(payload(block(), head_type="causal_lm_mtp", mtp=mtp, execution_modes=MODES))


@pytest.fixture
def ways(monkeypatch):
    """The names of the ways of decoding that were taken."""
    taken = []
    for name in ("decode_with_drafts", "decode_in_phases"):
        way = getattr(recipe, name)

        def watched(*args, way=way, name=name, **kwargs):
            taken.append(name)
            return way(*args, **kwargs)

        monkeypatch.setattr(recipe, name, watched)
    return taken


def test_a_plain_greedy_call_has_drafts_and_no_phases(model, ways):
    text = recipe.generate(model, IDS, **CALL)
    assert ways == ["decode_with_drafts"]
    assert torch.equal(text, type(model).generate(model, IDS, **CALL))
    assert torch.equal(text, recipe.generate(model, input_ids=IDS, **CALL))


OTHERS = {
    "use_drafts": {"use_drafts": False},
    "do_sample": {"do_sample": True, "top_k": 1},
    "num_beams": {"num_beams": 2},
    "use_cache": {"use_cache": False},
    "return_dict_in_generate": {"return_dict_in_generate": True, "output_scores": True},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("other", OTHERS)
def test_every_other_call_is_that_of_transformers(model, ways, other):
    row = {"attention_mask": CALL["attention_mask"][:1]}
    got = recipe.generate(model, IDS[:1], **CALL | row | OTHERS[other])
    want = {key: value for key, value in OTHERS[other].items() if key != "use_drafts"}
    want = type(model).generate(model, IDS[:1], **CALL | row | want)
    assert not ways
    if other == "return_dict_in_generate":
        assert len(got.scores) == 6
        got, want = got.sequences, want.sequences
    assert torch.equal(got, want)


def test_a_prompt_of_embeddings_or_a_filled_cache_has_no_drafts(model, ways):
    embeds = model.get_input_embeddings()(IDS)
    a = recipe.generate(model, inputs_embeds=embeds, **CALL)
    with torch.no_grad():
        out = model(input_ids=IDS[:, :4], use_cache=True)
    past = {FIELD: out[FIELD]}
    b = recipe.generate(model, IDS, **past, **CALL)
    assert not ways
    assert torch.equal(a, b[:, 5:])


def test_a_configuration_decides_where_the_call_says_nothing(model, ways):
    config = type(model.generation_config)(do_sample=True, top_k=1, max_new_tokens=6, pad_token_id=0)
    recipe.generate(model, IDS, config, attention_mask=CALL["attention_mask"])
    assert not ways
    recipe.generate(model, IDS, config, attention_mask=CALL["attention_mask"], do_sample=False)
    assert ways == ["decode_with_drafts"]


def test_a_call_that_names_the_directory_has_phases(model, ways):
    """transformers then passes every argument of its own generate on."""
    named = {"inputs": IDS, "generation_config": None, "negative_prompt_ids": None, "streamer": None}
    seen = recipe.generate(model, **named, **CALL)
    assert ways == ["decode_in_phases"]
    assert seen.shape == (2, 5 + 3)
    assert torch.equal(seen, recipe.generate(model, IDS, phases=True, **CALL))
    recipe.generate(model, phases=False, **named, **CALL)
    assert ways[-1] == "decode_with_drafts"


def test_the_budgets_are_the_cap_where_none_is_given(model):
    out = recipe.generate(model, IDS, phases=True, return_phases=True, pad_token_id=0, eos_token_id=None)
    assert out.all_sequences.shape == (2, 5 + 6)
    out = recipe.generate(model, IDS, phases=True, return_phases=True, max_length=9, pad_token_id=0, eos_token_id=None)
    assert out.all_sequences.shape == (2, 9)


def test_phases_of_nothing_are_an_error(payload, block, build):
    with pytest.raises(ValueError, match="no execution_modes"):
        recipe.generate(build(payload(block())), IDS, phases=True, **CALL)


def test_a_callable_is_passed_on(model, ways):
    text = recipe.generate(model, IDS, custom_generate=lambda model, input_ids, **_: input_ids + 1, **CALL)
    assert torch.equal(text, IDS + 1)
    assert not ways


def test_a_saved_model_keeps_its_file(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert (tmp_path / "custom_generate" / "generate.py").read_text() == recipe.TEXT

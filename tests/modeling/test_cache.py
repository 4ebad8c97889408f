import copy

import pytest
import torch
from transformers import DynamicCache
from transformers.generation.utils import GenerateDecoderOnlyOutput

from eulerstack.modeling.cache import EulerStackCache, own_cache


@pytest.fixture
def model(build, payload, block):
    return build(payload(block(), block("latent_attention")), torch.float64)


@pytest.fixture
def windowed(build, payload, block):
    return build(payload(block(), block(window=4)), torch.float64)


@pytest.fixture
def ids():
    return torch.randint(2, 67, (3, 15), generator=torch.Generator().manual_seed(1))


def filled(model, ids, **named):
    with torch.no_grad():
        return model(ids, use_cache=True, **named).past_key_values


def follow(model, ids, past):
    with torch.no_grad():
        return model(ids, cache=past, use_cache=True).logits


def whole(model, ids):
    with torch.no_grad():
        return model(ids, use_cache=False).logits


def test_size_of_the_states(windowed, ids):
    past = filled(windowed, ids)
    assert past.get_seq_length() == len(past.positions[0]) == 15
    assert [state["keys"].shape for state in past.states] == [(3, 15, 2, 6), (3, 3, 2, 6)]
    assert past.states[1]["keys"].untyped_storage().nbytes() == 3 * 3 * 2 * 6 * 8  # no view of the whole prompt


def test_both_names_of_the_argument(model, ids):
    want = whole(model, ids)[:, 9:]
    for name in ("cache", "past_key_values"):
        past = filled(model, ids[:, :9])
        with torch.no_grad():
            got = model(ids[:, 9:], **{name: past}).logits
        assert (got - want).abs().max() < 1e-12


def test_the_object_given_moves_on(model, ids):
    past = filled(model, ids[:, :9])
    with torch.no_grad():
        assert model(ids[:, 9:12], cache=past, use_cache=True).past_key_values is past
    assert past.get_seq_length() == 12


def test_reading_on_without_keeping(model, ids):
    past = filled(model, ids[:, :9])
    with torch.no_grad():
        out = model(ids[:, 9:], cache=past, use_cache=False)
    assert out.past_key_values is None
    assert past.get_seq_length() == 9


def test_a_failed_call_leaves_the_cache_as_it_was(model, ids):
    past = filled(model, ids[:, :9])

    def fail(*_):
        raise RuntimeError("in the last layer")

    handle = model.model.layers[-1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in the last layer"):
        model(ids[:, 9:12], cache=past, use_cache=True)
    handle.remove()
    assert past.get_seq_length() == 9
    assert (follow(model, ids[:, 9:], past) - whole(model, ids)[:, 9:]).abs().max() < 1e-12


def test_empty_foreign_cache_is_replaced(model, ids):
    with torch.no_grad():
        past = model(ids, cache=DynamicCache(config=model.config), use_cache=True).past_key_values
    assert isinstance(past, EulerStackCache)


def test_empty_cache_of_linear_layers_is_replaced(build, payload, block):
    config = build(payload(block("none", "mlp"))).config
    assert config.layer_types == ["linear_attention"]
    assert isinstance(own_cache(DynamicCache(config=config), 1, True), EulerStackCache)


def test_filled_foreign_cache_is_refused(model, ids):
    foreign = DynamicCache()
    foreign.update(torch.zeros(3, 2, 5, 6), torch.zeros(3, 2, 5, 6), 0)
    with pytest.raises(ValueError, match="cannot continue a filled DynamicCache"):
        model(ids, cache=foreign)


def test_nothing_writes_into_it():
    with pytest.raises(TypeError, match="return their state"):
        EulerStackCache(2).update(torch.zeros(1), torch.zeros(1), 0)


@pytest.mark.parametrize("kind", ["model", "windowed"])
def test_rows_reorder_repeat_and_select(kind, request, ids):
    model = request.getfixturevalue(kind)
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, :4] = 0
    for change, rows in (
        (lambda past: past.reorder_cache(torch.tensor([2, 1, 1])), [2, 1, 1]),
        (lambda past: past.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
        (lambda past: past.batch_select_indices(torch.tensor([1])), [1]),
    ):
        past, plain = (filled(model, ids[:, :9], attention_mask=mask) for _ in range(2))
        change(past)
        want = follow(model, ids[:, 9:], plain)
        assert past.batch_size == len(rows)
        assert (follow(model, ids[rows, 9:], past) - want[rows]).abs().max() < 1e-12


def test_copy_continues_by_itself(model, ids):
    past = filled(model, ids[:, :9])
    other = copy.deepcopy(past)
    want = follow(model, ids[:, 9:], past)
    assert other.get_seq_length() == 9
    assert torch.equal(follow(model, ids[:, 9:], other), want)


@pytest.mark.parametrize("count", [6, -5])
def test_crop_takes_back_tokens(model, ids, count):
    past = filled(model, ids[:, :11])
    past.crop(count)
    assert past.get_seq_length() == 6
    assert (follow(model, ids[:, 6:], past) - whole(model, ids)[:, 6:]).abs().max() < 1e-12


def test_crop_to_nothing_and_beyond(model, ids):
    past = filled(model, ids)
    past.crop(0)
    past.crop(20)
    assert past.get_seq_length() == 15
    past.crop(-15)
    assert past.get_seq_length() == 0
    assert (follow(model, ids, past) - whole(model, ids)).abs().max() < 1e-12


def test_crop_is_refused_where_the_past_is_gone(windowed, ids):
    past = filled(windowed, ids)
    assert not past.is_croppable
    assert windowed._is_stateful
    with pytest.raises(ValueError, match="cannot be cropped"):
        past.crop(-1)


def test_reset(model, ids):
    past = filled(model, ids)
    past.reset()
    assert (follow(model, ids, past) - whole(model, ids)).abs().max() < 1e-12


def test_answers_to_generate(model, ids):
    past = filled(model, ids)
    assert past.is_linear == past.is_sliding == past.is_dummy == [False, False]
    assert not past.is_compileable
    assert past.is_initialized
    assert len(past) == 2
    assert past.get_mask_sizes(4, 0) == past.get_mask_sizes(torch.arange(4), 0) == (19, 0)
    assert repr(past) == "EulerStackCache(2 layers, 15 tokens)"


def generated(model, ids, **named):
    shared = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, **shared | named)


def test_generate_goes_on_from_a_cache(windowed, ids):
    want = generated(windowed, ids[:1], max_new_tokens=7)
    past = filled(windowed, ids[:1, :11])
    name = "cache" if hasattr(GenerateDecoderOnlyOutput, "cache") else "past_key_values"
    assert torch.equal(generated(windowed, ids[:1], max_new_tokens=7, **{name: past}), want)


def test_prompt_lookup_takes_back_wrong_guesses(model, ids, monkeypatch):
    taken, crop = [], EulerStackCache.crop

    def counted(past, count):
        before = past.get_seq_length()
        crop(past, count)
        taken.append(before - past.get_seq_length())

    monkeypatch.setattr(EulerStackCache, "crop", counted)
    prompt = ids[:1].repeat(1, 2)  # what follows its end is guessed from its first half
    named = {"max_new_tokens": 9, "eos_token_id": 1}
    want = generated(model, prompt, **named)
    got = generated(model, prompt, **named, prompt_lookup_num_tokens=3)
    assert want.shape[1] == 39
    assert torch.equal(got[:, :39], want)  # some versions go one token beyond
    assert max(taken) > 0

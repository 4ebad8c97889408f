"""Every memory file inside whole models: generation, checkpointing, and what is saved beside the weights."""

from pathlib import Path
from runpy import run_path

import pytest
import torch

checkpoint_layers = run_path(str(Path(__file__).parents[2] / "calls.py"))["checkpoint_layers"]


@pytest.fixture
def layered(name, options, build, payload, block):
    """`layered(mixer, dtype, **changes)`: two layers with the memory, the second one with a parallel residual."""

    def made(mixer="attention", dtype=torch.float64, **changes):
        memory = {"type": name.removeprefix("memory_")} | options(name) | changes
        second = block(mixer, "mlp", residual={"type": "parallel"}) | {"memory": memory}
        return build(payload(block(mixer) | {"memory": memory}, second), dtype)

    return made


@pytest.mark.parametrize("mixer", ["attention", "none"])
def test_generates_the_same_with_and_without_cache(layered, mixer):
    ids = torch.randint(2, 67, (2, 19), generator=torch.Generator().manual_seed(1))
    model = layered(mixer)
    named = {"max_new_tokens": 9, "do_sample": False, "attention_mask": torch.ones(2, 19), "pad_token_id": 0}
    assert torch.equal(*(model.generate(ids, use_cache=use, **named) for use in (True, False)))
    assert not model.model.croppable


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_no_gradient(layered, reentrant):
    ids = torch.randint(2, 67, (3, 23), generator=torch.Generator().manual_seed(1))
    models = layered(), checkpoint_layers(layered(), reentrant)
    for model in models:
        model.train()(input_ids=ids, labels=ids).loss.backward()
    for (key, p), q in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert p.grad is not None, key
        assert torch.equal(p.grad, q.grad), key


def test_what_was_remembered_is_saved_with_the_weights_and_loaded(layered, tmp_path):
    model = layered(dtype=torch.bfloat16, persistence="persistent")
    ids = torch.randint(2, 67, (1, 23), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = model(input_ids=ids).logits
        past = model(input_ids=ids.flip(1), use_cache=True).past_key_values
        for layer, state in zip(model.model.layers, past.states, strict=True):
            layer.memory.remember(state)
        want = model(input_ids=ids).logits
    assert not torch.equal(want, before)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    for (key, buffer), again in zip(model.named_buffers(), loaded.buffers(), strict=True):
        assert buffer.dtype == again.dtype == torch.float32, key
        assert torch.equal(buffer, again), key
    with torch.no_grad():
        assert torch.equal(loaded.eval()(input_ids=ids).logits, want)

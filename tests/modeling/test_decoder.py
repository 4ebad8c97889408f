import copy
import os
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest
import torch
from torch.nn import functional as F
from transformers.modeling_outputs import CausalLMOutputWithPast

checkpoint_layers = run_path(str(Path(__file__).parents[1] / "calls.py"))["checkpoint_layers"]
T = 11


@pytest.fixture
def ids():
    return torch.randint(2, 67, (3, T), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model(build, payload, block):
    return build(payload(block(), block(residual={"type": "parallel"})))


def run(model, *args, **named):
    with torch.no_grad():
        return model(*args, **{"use_cache": False} | named)


def cross_entropy(logits, labels, reduction="mean"):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction=reduction)


def test_hidden_states_end_with_the_final_norm(model, ids):
    out, base = run(model, ids, output_hidden_states=True), run(model.model, ids)
    assert len(out.hidden_states) == 3
    assert torch.equal(out.hidden_states[0], model.model.embed_tokens(ids))
    assert torch.equal(out.hidden_states[-1], base.last_hidden_state)
    assert torch.equal(out.logits, model.lm_head(base.last_hidden_state))
    assert run(model, ids).hidden_states is base.hidden_states is None


def test_each_layer_in_turn(model, ids):
    seen = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    hidden = run(model, ids, output_hidden_states=True).hidden_states
    assert torch.equal(hidden[1], seen[0])
    assert torch.equal(hidden[2], model.model.norm(seen[1]))


def test_tuples(model, ids):
    out = run(model, ids, labels=ids, output_hidden_states=True, use_cache=True)
    loss, logits, past, hidden = run(
        model, ids, labels=ids, output_hidden_states=True, use_cache=True, return_dict=False
    )
    assert torch.equal(loss, out.loss)
    assert torch.equal(logits, out.logits)
    assert past.get_seq_length() == T
    assert len(hidden) == 3
    assert torch.equal(run(model.model, ids, return_dict=False)[0], out.hidden_states[-1])


def test_embeddings_instead_of_ids(model, ids):
    assert torch.equal(run(model, inputs_embeds=model.model.embed_tokens(ids)).logits, run(model, ids).logits)
    for named in ({}, {"input_ids": ids, "inputs_embeds": model.model.embed_tokens(ids)}):
        with pytest.raises(ValueError, match="exactly one of"):
            model(**named)


def test_attention_maps_are_refused(model, ids):
    with pytest.raises(ValueError, match="attention maps"):
        model(ids, output_attentions=True)


@pytest.mark.parametrize(("kept", "places"), [(0, slice(None)), (3, slice(-3, None)), ([1, 4], [1, 4])])
def test_logits_to_keep(model, ids, kept, places):
    kept = torch.tensor(kept) if isinstance(kept, list) else kept
    assert torch.allclose(run(model, ids, logits_to_keep=kept).logits, run(model, ids).logits[:, places], atol=1e-6)


def test_loss_is_shifted_and_counts_what_it_is_told(model, ids):
    labels = ids.clone()
    labels[:, :4] = -100
    logits = run(model, ids).logits
    assert torch.allclose(run(model, ids, labels=labels).loss, cross_entropy(logits, labels))
    summed = cross_entropy(logits, labels, "sum")
    assert torch.allclose(run(model, ids, labels=labels, num_items_in_batch=torch.tensor(50)).loss, summed / 50)


def test_embedding_scale_acts_on_given_embeddings_too(build, payload, block, ids):
    model = build(payload(block(), embedding_scale=3.3), torch.bfloat16)
    raw = model.model.embed_tokens(ids)
    want = raw * torch.tensor(3.3, dtype=torch.bfloat16)  # the factor itself is rounded, as in Gemma
    for named in ({"input_ids": ids}, {"inputs_embeds": raw}):
        assert torch.equal(run(model, **named, output_hidden_states=True).hidden_states[0], want)


def test_learned_positions_are_looked_up_by_place(build, payload, block, ids):
    model = build(payload(block(), positional="learned", rope_parameters=None))
    places = torch.tensor([[3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7]])
    hidden = run(model, ids, position_ids=places, output_hidden_states=True).hidden_states[0]
    tables = model.model.embed_tokens.weight, model.model.embed_positions.weight
    assert torch.equal(hidden, tables[0][ids] + tables[1][places])


@pytest.mark.parametrize("places", [[11, 12], [-1, 0]])
def test_a_place_beyond_the_learned_ones_is_refused_by_name(build, payload, block, places):
    model = build(payload(block(), positional="learned", max_position_embeddings=12))
    with pytest.raises(ValueError, match=r"only 0 to 11 were learned \(max_position_embeddings\)"):
        model(input_ids=torch.zeros(1, 2, dtype=torch.long), position_ids=torch.tensor([places]))
    prompt = torch.ones(1, 8, dtype=torch.long)
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert model.generate(prompt, max_new_tokens=5, **options).shape == (1, 13)  # the last one is never read
    with pytest.raises(ValueError, match="positions 12 to 12"):
        model.generate(prompt, max_new_tokens=6, **options)


def test_head_bias_softcap_and_no_final_norm(build, payload, block, ids):
    cap = {"head_bias": True, "final_logit_softcapping": 2.0, "final_norm": None, "tie_word_embeddings": False}
    model = build(payload(block(norm={"position": "post"}), **cap), torch.float64)
    with torch.no_grad():
        model.lm_head.bias.copy_(torch.linspace(-1, 1, 67))
    hidden = run(model.model, ids).last_hidden_state
    want = 2.0 * torch.tanh((hidden @ model.lm_head.weight.T + model.lm_head.bias) / 2.0)
    assert torch.allclose(run(model, ids).logits, want, rtol=0, atol=1e-12)
    assert isinstance(model.model.norm, torch.nn.Identity)


def test_layered_safe_is_wide_outside_the_branches(build, payload, block, ids):
    layers = [block()] * 4
    narrow, wide = (
        build(payload(*layers, dtype_policy=policy, head_bias=True, embedding_scale=20.0), torch.bfloat16)
        for policy in ("uniform", "layered_safe")
    )
    exact = copy.deepcopy(wide).double()
    want = run(exact, ids).logits
    out = run(wide, ids, output_hidden_states=True)
    assert {h.dtype for h in out.hidden_states} == {out.logits.dtype} == {torch.float32}
    assert run(narrow, ids).logits.dtype == torch.bfloat16
    assert (out.logits - want).std() < 0.4 * (run(narrow, ids).logits - want).std()
    assert {p.dtype for p in wide.parameters()} == {torch.bfloat16}


def test_dropout_acts_in_training_only(build, payload, block, ids):
    model = build(payload(block(), dropout=0.4))
    assert torch.equal(run(model, ids).logits, run(model, ids).logits)
    model.train()
    first = run(model, ids, output_hidden_states=True).hidden_states[0]
    share = (first == 0).float().mean().item()
    assert 0.3 < share < 0.5


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_tying_resizing_and_loading_again(build, payload, block, ids, tied, bias, tmp_path):
    model = build(payload(block(), tie_word_embeddings=tied, head_bias=bias))
    want = run(model, ids).logits
    model.resize_token_embeddings(70, mean_resizing=False)
    model.save_pretrained(tmp_path)
    for m in (model, type(model).from_pretrained(tmp_path).eval()):
        got = run(m, ids, labels=ids).logits
        assert got.shape[-1] == m.config.vocab_size == 70
        assert torch.allclose(got[..., :67], want, atol=1e-5)
        assert (m.get_input_embeddings().weight is m.get_output_embeddings().weight) is tied


def test_cache_is_off_in_training_unless_asked_for_and_never_under_checkpointing(model, ids):
    assert model(ids).past_key_values is not None
    model.train()
    assert model(ids).past_key_values is None
    assert model(ids, use_cache=True).past_key_values is not None
    checkpoint_layers(model, reentrant=False)
    assert model(ids, use_cache=True).past_key_values is None
    assert run(model, ids, use_cache=True).past_key_values is not None  # no gradient: nothing runs twice


def test_checkpointing_through_transformers(model, ids):
    other = copy.deepcopy(model)
    enable = getattr(other, "activation_checkpointing_enable", None) or other.gradient_checkpointing_enable
    enable()
    runs = []
    other.model.layers[0].mixer.register_forward_hook(lambda *_: runs.append(1))
    for m in (model, other):
        m.train()(ids, labels=ids).loss.backward()
    assert len(runs) == 2
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_only_a_model_that_forgets_is_stateful(build, payload, block):
    assert not build(payload(block(), block("none", "mlp")))._is_stateful
    assert build(payload(block(window=5)))._is_stateful
    assert not build(payload(block(window=5, window_mode="nsa")))._is_stateful
    assert build(payload(block(), block("mamba2")))._is_stateful


def test_without_any_mixer_it_still_generates(build, payload, block, ids):
    model = build(payload(block("none", "mlp"), positional="none", rope_parameters=None))
    named = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(model.generate(ids, **named), model.generate(ids, **named, use_cache=False))


def test_dense_models_have_plain_outputs(model, ids):
    assert type(run(model, ids)) is CausalLMOutputWithPast


def test_it_compiles_as_one_graph(build, payload, block, ids):
    model = build(payload(block(window=5), block("latent_attention", residual={"type": "parallel"})))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    past, other = (run(m, ids, attention_mask=mask, use_cache=True) for m in (compiled, model))
    assert torch.allclose(past.logits, other.logits, atol=1e-6)
    past, other = (m(ids[:, :1], cache=o.past_key_values) for m, o in ((compiled, past), (model, other)))
    assert torch.allclose(past.logits, other.logits, atol=1e-6)


STRANGER = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True, dtype=torch.float32).eval()
assert "eulerstack" not in sys.modules
with torch.no_grad():
    torch.save(model(torch.arange(2, 13)[None], use_cache=False).logits, sys.argv[2])
"""


def test_a_directory_runs_without_the_package(export, payload, block, tmp_path):
    model = export(payload(block(), block("latent_attention", "mlp", window=4)), tmp_path / "alone")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", STRANGER, str(tmp_path / "alone"), str(tmp_path / "out.pt")]
    done = subprocess.run(command, check=False, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "out.pt"), run(model, torch.arange(2, 13)[None]).logits)


def test_a_static_cache_is_refused_in_words(build, payload, block):
    model = build(payload(block("attention", "mlp")))
    with pytest.raises(ValueError, match="cache of its own"):
        model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=3, cache_implementation="static", pad_token_id=0)

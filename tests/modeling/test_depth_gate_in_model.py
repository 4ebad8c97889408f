"""Mixture-of-Depths in a whole model: caches, padding, documents, losses, checkpoints, streams.

B batch, T tokens.
"""

import copy
from pathlib import Path
from runpy import run_path

import pytest
import torch
from torch.nn import functional as F

from eulerstack.modeling.context import Context

CALLS = run_path(str(Path(__file__).parents[1] / "calls.py"))
logits, in_chunks, checkpoint_layers = (CALLS[name] for name in ("logits", "in_chunks", "checkpoint_layers"))
ROUTERS = ("top_k", "learned_gate")


def gated(block, router="top_k", mixer="attention", ffn="gated_mlp", **named):
    return block(mixer, ffn, **named) | {"depth_gating": {"capacity": 0.5, "router": router}}


@pytest.fixture(params=[("top_k", "attention"), ("learned_gate", "mamba2"), ("top_k", "latent_attention")], ids=str)
def model(request, build, payload, block):
    router, mixer = request.param
    window = {"window": 4} if mixer == "attention" else {}
    blocks = [gated(block, router, mixer, **window), block(), gated(block, router, mixer, "mlp")]
    made = build(payload(*blocks), torch.float64)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if ".depth." in name:
                parameter.mul_(5.0)
    return made


@pytest.fixture
def ids():
    return torch.randint(2, 67, (3, 23), generator=torch.Generator().manual_seed(1))


def close(a, b):
    assert (a - b).abs().max() < 1e-9 * b.std()


def test_some_tokens_pass_in_evaluation_and_some_do_not(model, ids):
    _, past = in_chunks(model, ids, (23,))
    for state in (past.states[0], past.states[2]):
        assert 0.1 < (state["depth/history"] & 1).double().mean() < 0.9


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("lengths", [(1,) * 23, (9, 1, 7, 6)])
def test_chunks_continue_exactly(model, ids, lengths, training):
    """In training too, where a cache is in use, the tokens decide for themselves."""
    want = logits(model, ids)
    close(in_chunks(model.train(training), ids, lengths)[0], want)


def test_evaluation_is_causal_and_training_is_not(model, ids):
    other = ids.clone()
    other[:, 15:] = (ids[:, 15:] - 2 + 7) % 65 + 2
    close(logits(model, other)[:, :15], logits(model, ids)[:, :15])
    model.train()
    assert (logits(model, other)[:, :15] - logits(model, ids)[:, :15]).abs().max() > 1e-3


@pytest.mark.parametrize("training", [False, True])
def test_padding_and_documents_do_not_leak(model, ids, training):
    model.train(training)
    bounds = ((0, 4), (4, 5), (5, 16), (16, 23))
    places = torch.cat([torch.arange(b - a) for a, b in bounds])[None]
    want = torch.cat([logits(model, ids[:1, a:b]) for a, b in bounds], 1)
    close(logits(model, ids[:1], position_ids=places), want)
    spans, batch, mask = ((3, 20), (0, 23), (6, 17)), torch.full((3, 23), 7), torch.zeros(3, 23, dtype=torch.long)
    for row, (a, b) in enumerate(spans):
        batch[row, a:b], mask[row, a:b] = ids[row, : b - a], 1
    got = logits(model, batch, attention_mask=mask)
    for row, (a, b) in enumerate(spans):
        close(got[row, a:b], logits(model, ids[row : row + 1, : b - a])[0])


@pytest.mark.parametrize("lengths", [(1,) * 23, (5, 1, 12, 5)])
def test_documents_whose_first_tokens_do_not_pass(model, ids, lengths):
    """The state resets at the first token that passes, which may come in a later call."""
    bounds = [(a, min(a + 3, 23)) for a in range(0, 23, 3)]
    places = torch.cat([torch.arange(b - a) for a, b in bounds])[None].expand(3, -1)
    want = torch.cat([logits(model, ids[:, a:b]) for a, b in bounds], 1)
    close(logits(model, ids, position_ids=places), want)
    got, past = in_chunks(model, ids, lengths, position_ids=places)
    close(got, want)
    first = (past.states[0]["depth/history"][:, ::3] & 1).bool()
    assert first.any()
    assert not first.all()


def test_a_cache_with_choices_can_be_cropped(build, payload, block, ids):
    model = build(payload(gated(block), block()), torch.float64)
    _, past = in_chunks(model, ids, (12,))
    past.crop(7)
    with torch.no_grad():
        again = model(input_ids=ids[:, 7:], cache=past, use_cache=True).logits
    close(again, logits(model, ids)[:, 7:])


@pytest.mark.parametrize("coef", [0.0, 0.5])
def test_the_loss_of_a_model_is_its_own_plus_that_of_the_gates(coef, build, payload, block, ids):
    settings = {"router_aux_loss_coef": coef, "output_router_logits": True}
    model = build(payload(gated(block), block(), gated(block, "learned_gate"), **settings), torch.float64).train()
    out = model(input_ids=ids, labels=ids)
    plain = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert (out.loss - plain > 0.1) == (coef > 0)
    out.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if coef or "predictor" not in name:
            assert parameter.grad.any(), name


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("ffn", ["gated_mlp", "moe"])
def test_checkpointing_changes_nothing(reentrant, ffn, build, payload, block, ids):
    correction = {"enabled": True, "update_rate": 0.1, "target_imbalance": 0.0}
    options = {"ffn_options": {"bias_correction": correction}} if ffn == "moe" else {}
    blocks = [gated(block, ffn=ffn, **options), gated(block, "learned_gate", "mamba2")]
    model = build(payload(*blocks, output_router_logits=True), torch.float64)
    other = checkpoint_layers(copy.deepcopy(model), reentrant)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    for m in (model, other):
        for _ in range(2):
            m.train()(input_ids=ids, labels=ids, attention_mask=mask).loss.backward()
    for (name, p), q in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(p.grad, q[1].grad), name
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b)


def test_work_shrinks_with_the_capacity(build, payload, block, ids):
    from torch.utils.flop_counter import FlopCounterMode

    counts = {}
    for capacity in (0.25, 0.5, 1.0):
        one = gated(block) | {"depth_gating": {"capacity": capacity, "router": "learned_gate"}}
        model = build(payload(one)).train()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.model.layers[0](model.model.embed_tokens(ids[:, :20]), context_of(ids[:, :20]))
        counts[capacity] = counter.get_total_flops()
    assert counts[0.25] < 0.3 * counts[1.0]
    assert counts[0.5] < 0.55 * counts[1.0]


def context_of(ids: torch.Tensor) -> Context:
    places = torch.arange(ids.shape[1]).expand_as(ids)
    return Context(positions=places, key_positions=places)


@pytest.mark.parametrize("router", ROUTERS)
def test_over_several_streams(router, build, payload, block, ids):
    hyper = {"type": "hyper_connection", "expand": 3, "mixing": "birkhoff", "sinkhorn_iters": 2}
    model = build(payload(gated(block, router, residual=hyper), block(residual=hyper), streams=3), torch.float64)
    close(in_chunks(model, ids, (9, 1, 7, 6))[0], logits(model, ids))
    model.train()(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("memory", ["associative", "neural_memory", "retrieval"])
def test_a_session_ends_with_a_document_inside_a_call(memory, options, build, payload, block):
    """Also where no token before the border passes in that call, or the first token behind it in a later one."""
    kept = options(f"memory_{memory}") | {"type": memory, "update_at_inference": True, "persistence": "session"}
    made = build(payload(gated(block, mixer="none") | {"memory": kept}), torch.float64)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    for seed in range(12):
        row = torch.randint(2, 67, (1, 23), generator=torch.Generator().manual_seed(seed))
        places = torch.cat((torch.arange(17), torch.arange(6)))[None]
        apart = torch.cat((logits(made, row[:, :17]), logits(made, row[:, 17:])), 1)
        for lengths in ((16, 3, 4), (15, 3, 5)):
            close(in_chunks(made, row, lengths, position_ids=places)[0], apart)

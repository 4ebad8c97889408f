"""What the decoder does with the records of its mixtures of experts."""

from pathlib import Path
from runpy import run_path

import pytest
import torch
from torch.nn import functional as F
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from eulerstack.modeling.op_balance import balance_loss, z_loss

checkpoint_layers = run_path(str(Path(__file__).parents[1] / "calls.py"))["checkpoint_layers"]


@pytest.fixture
def ids():
    return torch.randint(2, 67, (3, 11), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def mixture(build, payload, block):
    def made(coef=0.02, dtype=torch.float64, **options):
        layer = block("attention", "moe", ffn_options=options)
        plain = block("attention", "mlp")
        return build(payload(layer, plain, layer, router_aux_loss_coef=coef), dtype)

    return made


def run(model, *args, **named):
    with torch.no_grad():
        return model(*args, **{"use_cache": False} | named)


def cross_entropy(logits, labels, reduction="mean"):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction=reduction)


def test_mixture_of_experts_adds_its_losses(mixture, ids):
    model = mixture(load_balance_coef=0.3, z_loss=0.05)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    out = run(model, ids, labels=ids, attention_mask=mask)
    assert isinstance(out, MoeCausalLMOutputWithPast)
    assert [t.shape[:2] for t in out.router_logits] == [ids.shape, ids.shape]
    inner = run(model.model, ids, attention_mask=mask)
    records = [record for _, _, record in inner.records]
    assert all(torch.equal(a, b.logits) for a, b in zip(out.router_logits, records, strict=True))
    affinity = model.model.layers[0].ffn.router.affinity
    want = 0.3 * balance_loss(records, affinity) + 0.05 * z_loss(records)
    assert torch.allclose(out.aux_loss * 0.02, want)
    assert torch.allclose(out.loss, cross_entropy(out.logits, ids) + want)


def test_accumulated_calls_add_up_to_one(mixture, ids):
    model = mixture(load_balance_coef=0.3, z_loss=0.05)
    labels = ids.clone()
    labels[1, :7] = -100
    items = (labels[:, 1:] != -100).sum()
    whole = run(model, ids, labels=labels, num_items_in_batch=items)
    assert torch.allclose(whole.loss, run(model, ids, labels=labels).loss)
    parts = [run(model, ids[i : i + 1], labels=labels[i : i + 1], num_items_in_batch=items) for i in range(len(ids))]
    shares = [(row[1:] != -100).sum() / items for row in labels]
    want = cross_entropy(whole.logits, labels) + 0.02 * sum(s * p.aux_loss for s, p in zip(shares, parts, strict=True))
    assert torch.allclose(sum(part.loss for part in parts), want)


def test_mixture_of_experts_tuples_start_with_loss_or_logits(mixture, ids):
    model = mixture()
    out = run(model, ids, labels=ids)
    loss, logits, aux, routers = run(model, ids, labels=ids, return_dict=False)
    assert (torch.equal(loss, out.loss), torch.equal(logits, out.logits), torch.equal(aux, out.aux_loss)) == (True,) * 3
    assert len(routers) == 2
    assert torch.equal(run(model, ids, return_dict=False)[0], out.logits)


def test_mixture_of_experts_losses_can_be_switched_off(mixture, ids):
    for out in (run(mixture(coef=0.0), ids, labels=ids), run(mixture(), ids, labels=ids, output_router_logits=False)):
        assert out.aux_loss is None
        assert torch.allclose(out.loss, cross_entropy(out.logits.float(), ids))
    assert run(mixture(), ids, output_router_logits=False).router_logits is None


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # no gradient is wanted, by some versions
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_correction_bias_moves_once_a_training_step(mixture, ids, reentrant):
    model = mixture(bias_correction={"enabled": True, "update_rate": 0.125, "target_imbalance": 0.0})
    if reentrant is not None:
        checkpoint_layers(model, reentrant)
    bias = model.model.layers[0].ffn.router.correction_bias
    run(model, ids)
    model.train()
    run(model, ids)
    assert (bias == 0).all()
    model(ids, labels=ids).loss.backward()
    assert bias.abs().max() == 0.125

"""Mixture-of-Depths: training passes exactly the best tokens of each document, evaluation decides token by token.

B batch, T tokens, D model width.
"""

import math
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from eulerstack.modeling.context import Context
from eulerstack.modeling.depth_gate import DepthGate, DepthRecord

DEPTHS = run_path(str(Path(__file__).with_name("depths.py")))
B, T, KEEP, CAPACITIES, every_fact, documents, best_by_hand = (
    DEPTHS[name] for name in ("B", "T", "KEEP", "CAPACITIES", "every_fact", "documents", "best_by_hand")
)
D = 6
ROUTERS = ("top_k", "learned_gate")


def gate(router: str, capacity: float = 0.4) -> DepthGate:
    config = SimpleNamespace(hidden_size=D, rms_norm_eps=1e-5, _attn_implementation="sdpa")
    made = DepthGate(config, 0, capacity=capacity, router=router)
    generator = torch.Generator().manual_seed(3)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.6, generator=generator)
    return made.double()


def context(use_cache: bool = False, **facts) -> Context:
    places = torch.arange(T).expand(B, T)
    documents = None if "starts" not in facts else facts["starts"].long().cumsum(1)
    ids = torch.arange(B * T).view(B, T)
    return Context(
        positions=places,
        key_positions=places,
        key_keep=facts.get("keep"),
        key_documents=documents,
        use_cache=use_cache,
        input_ids=ids,
        extra={"seq_idx": documents, "cu_seq_lens_q": None, "other": 1},
        **facts,
    )


def inputs(*streams: int) -> torch.Tensor:
    return torch.randn(B, T, *streams, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def scores(made: DepthGate, x: torch.Tensor) -> torch.Tensor:
    """r of each token, one at a time, in plain numbers; of several streams from their mean."""
    weight, bias = made.router.weight[0].tolist(), made.router.bias.item()
    r = torch.empty(B, T, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            values = (x[b, t] if x.dim() == 3 else x[b, t].mean(0)).tolist()
            size = math.sqrt(sum(v * v for v in values) / D + 1e-5)
            r[b, t] = sum(w * v / size for w, v in zip(weight, values, strict=True)) + bias
    return r


def layer(x: torch.Tensor, seen: Context) -> torch.Tensor:
    """Something that mixes tokens causally: the mean of the real tokens of the document up to here."""
    keep = torch.ones(x.shape[:2], dtype=torch.bool) if seen.keep is None else seen.keep
    number = torch.zeros_like(keep, dtype=torch.long) if seen.starts is None else seen.starts.long().cumsum(1)
    visible = (number[:, :, None] == number[:, None, :]) & keep[:, None, :]
    visible = visible.tril() | torch.eye(x.shape[1], dtype=torch.bool)
    weights = visible.to(x.dtype) / visible.sum(-1, keepdim=True)
    return torch.einsum("btk,bk...->bt...", weights, x.sin()) + x


def expected(x: torch.Tensor, chosen: torch.Tensor, g: torch.Tensor, facts: dict) -> torch.Tensor:
    """The same layer over the chosen tokens of each document alone, one document at a time."""
    want = x.clone()
    for places in documents(facts):
        taken = [p for p in places if chosen.flatten()[p]]
        for i, p in enumerate(taken):
            b, t = divmod(p, T)
            mean = sum(x[q // T, q % T].sin() for q in taken[: i + 1]) / (i + 1)
            want[b, t] = x[b, t] + g[b, t] * mean
    return want


def squashed(made: DepthGate, r: torch.Tensor) -> torch.Tensor:
    return 2 / (1 + torch.exp(-r)) if made.predicts else 1 / (1 + torch.exp(-r))


@every_fact
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("streams", [(), (2,)])
@pytest.mark.parametrize("router", ROUTERS)
def test_training_is_the_layer_over_the_best_tokens(router, streams, capacity, facts):
    made, x = gate(router, capacity).train(), inputs(*streams)
    choice = made.choose(x, context(**facts), None)
    r = scores(made, x)
    chosen = best_by_hand(r, capacity, facts)
    assert torch.equal(choice.record.chosen, chosen)
    assert choice.x.shape[1] == chosen.sum(1).max()
    got = made.restore(x, layer(choice.x, choice.context), choice)
    assert (got - expected(x, chosen, squashed(made, r), facts)).abs().max() < 1e-12


@every_fact
@pytest.mark.parametrize("router", ROUTERS)
def test_evaluation_is_the_layer_over_the_tokens_that_decide_to_pass(router, facts):
    made, x = gate(router).eval(), inputs()
    choice = made.choose(x, context(**facts), None)
    r = scores(made, x)
    p = r
    if router == "top_k":
        u = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        p = F.silu(u @ made.predictor_up.weight.T + made.predictor_up.bias)
        p = (p @ made.predictor_down.weight.T + made.predictor_down.bias).squeeze(-1)
    chosen = (p > 0) & facts.get("keep", torch.ones(B, T, dtype=torch.bool))
    assert 0.2 < chosen.double().mean() < 0.8
    got = made.restore(x, layer(choice.x, choice.context), choice)
    assert (got - expected(x, chosen, squashed(made, r), facts)).abs().max() < 1e-12
    assert choice.record is None


@every_fact
def test_the_context_of_gathered_tokens(facts):
    made = gate("top_k", 0.5).train()
    outer = context(**facts)
    outer.memo["mask"] = "of all tokens"
    choice = made.choose(inputs(), outer, None)
    inner, chosen = choice.context, choice.record.chosen
    for b in range(B):
        places = chosen[b].nonzero().flatten().tolist()
        assert choice.slots[b, : len(places)].tolist() == places
        assert inner.positions[b, : len(places)].tolist() == places
        assert inner.input_ids[b, : len(places)].tolist() == [b * T + t for t in places]
        real = torch.ones(len(choice.slots[b]), dtype=torch.bool) if inner.keep is None else inner.keep[b]
        assert real.sum() == len(places)
        if "starts" in facts:
            number = outer.key_documents[b, places].tolist()
            assert inner.key_documents[b, : len(places)].tolist() == number
            assert inner.starts[b, : len(places)].tolist() == [False] + [
                here != there for here, there in zip(number[1:], number, strict=False)
            ]
    assert (inner.keep is None) == (not facts)
    assert inner.key_positions is inner.positions
    assert inner.key_keep is inner.keep
    assert (inner.past, inner.use_cache) == (0, False)
    assert inner.extra == {"other": 1}
    assert "mask" not in inner.memo
    assert inner.memo["call"] is outer.memo


def test_a_registered_attention_kernel_is_told_of_the_gaps():
    """It would take a jump between places for the border of a document, unless there is padding to mask."""
    made = gate("top_k", 0.5).train()
    made.config._attn_implementation = "flash_attention_2"
    inner = made.choose(inputs(), context(), None).context
    assert inner.key_keep.all()


@pytest.mark.parametrize("router", ROUTERS)
def test_the_loss_trains_the_decision_and_nothing_below(router):
    made, x = gate(router).train(), inputs().requires_grad_()
    outer = context(keep=KEEP)
    record = made.choose(x, outer, None).record
    other = DepthRecord(record.logits.detach() + 1, ~record.chosen, KEEP)
    loss = DepthGate.aux_loss([made, made], [record, other], 0.25)
    total = 0.0
    for one in (record, other):
        target = one.chosen.double()
        p = one.logits.sigmoid()
        cross = -(target * p.log() + (1 - target) * (1 - p).log())
        total = total + cross[KEEP].mean()
    assert abs(loss - total / 0.25) < 1e-12
    loss.backward()
    assert x.grad is None or not x.grad.any()
    decides = {"top_k": "predictor", "learned_gate": "router"}[router]
    for name, parameter in made.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == name.startswith(decides), name
    assert DepthGate.aux_loss([made], [record], 0.0) == 0


@pytest.mark.parametrize("router", ROUTERS)
def test_gradients_of_what_passes(router):
    made = gate(router, 0.5).train()
    x = inputs()[:, :5].requires_grad_()
    places = torch.arange(5).expand(B, 5)

    def run(x):
        choice = made.choose(x, Context(positions=places, key_positions=places), None)
        return made.restore(x, layer(choice.x, choice.context), choice)

    assert torch.autograd.gradcheck(run, (x,))
    run(x).square().sum().backward()
    assert all(p.grad is not None for p in made.parameters())
    assert made.router.weight.grad.any()


def test_an_unknown_router_is_refused():
    with pytest.raises(ValueError, match="top-k"):
        gate("top-k")

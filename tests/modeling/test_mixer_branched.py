"""The gate of a branched mixer against its equation, and what keeps branches apart.

B batch, T tokens, D model width, N branches.
"""

import math

import pytest
import torch
from torch import nn

from eulerstack.modeling.context import Context
from eulerstack.modeling.mixer_branched import Mixer

B, T, D = 2, 5, 6
NAMES = ("b", "a.b", "a/%", "c d")
SELECTORS = [("learned_gate", 1), ("top_k", 1), ("top_k", 2), ("top_k", 4)]


class Sums(nn.Module):
    """A recurrence: the running sum of sin(weight x); its state has a name that another branch's has too."""

    def __init__(self, weight: float, croppable: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight, dtype=torch.float64))
        self.croppable = croppable

    def forward(self, x, context, state):
        before = 0 if state is None else state["sum"][:, None]
        y = torch.sin(self.weight * x).cumsum(1) + before
        return y, {"sum": y[:, -1]} if context.use_cache else None


class Config:
    hidden_size = D


def mixer(selector: str, top_k: int, names=NAMES) -> Mixer:
    branches = {name: Sums(0.5 + 0.3 * sum(name.encode())) for name in names}
    made = Mixer(Config, 0, branches=branches, selector=selector, top_k=top_k).double()
    nn.init.normal_(made.gate.weight, std=0.8, generator=torch.Generator().manual_seed(2))
    return made


def inputs() -> torch.Tensor:
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def context(length: int = T, use_cache: bool = False) -> Context:
    return Context(positions=torch.arange(length).expand(B, length), use_cache=use_cache)


def weights_of_a_token(made: Mixer, x: list[float]) -> list[float]:
    logits = [sum(w * v for w, v in zip(row, x, strict=True)) for row in made.gate.weight.tolist()]
    best = sorted(range(len(logits)), key=lambda i: -logits[i])[: made.top_k]
    total = sum(math.exp(logits[i]) for i in best)
    return [math.exp(logits[i]) / total if i in best else 0.0 for i in range(len(logits))]


@pytest.mark.parametrize(("selector", "top_k"), SELECTORS)
def test_equation_token_by_token(selector, top_k):
    made, x = mixer(selector, top_k), inputs()
    branches = [getattr(made, name)(x, context(), None)[0] for name in made.names]
    want = torch.zeros_like(x)
    for b in range(B):
        for t in range(T):
            for weight, y in zip(weights_of_a_token(made, x[b, t].tolist()), branches, strict=True):
                want[b, t] += weight * y[b, t]
    assert (made(x, context(), None)[0] - want).abs().max() < 1e-12


@pytest.mark.parametrize(("selector", "top_k"), SELECTORS)
def test_gradients_reach_every_parameter(selector, top_k):
    made, x = mixer(selector, top_k), inputs().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: made(x, context(), None)[0], (x,))
    made(x, context(), None)[0].square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in made.parameters())
    assert made.gate.weight.grad.any() == (made.top_k > 1)  # one branch alone has weight 1


def test_a_branch_that_is_never_chosen_gets_a_gradient_of_zero():
    made, x = mixer("top_k", 1), inputs().abs()
    with torch.no_grad():
        made.gate.weight.copy_(torch.tensor([1.0, 2.0, 4.0, 3.0])[:, None].expand(4, D))
    made(x, context(), None)[0].sum().backward()
    grads = [getattr(made, name).weight.grad.item() for name in made.names]
    assert [grad != 0 for grad in grads] == [False, False, True, False]


def test_branches_keep_their_states_apart():
    made, x = mixer("learned_gate", 1), inputs()
    whole, last = made(x, context(use_cache=True), None)
    state, parts = None, []
    for t in range(T):
        y, state = made(x[:, t : t + 1], context(1, use_cache=True), state)
        parts.append(y)
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-12
    assert state.keys() == last.keys() == {f"{name}.sum" for name in made.names}
    assert all((state[key] - last[key]).abs().max() < 1e-12 for key in last)
    assert len({tuple(tensor.flatten().tolist()) for tensor in last.values()}) == len(NAMES)
    assert made(x, context(), None)[1] is None


def test_the_order_in_which_branches_are_given_does_not_matter():
    """A file of JSON may come back sorted."""
    one, other = mixer("top_k", 2), mixer("top_k", 2, NAMES[::-1])
    other.load_state_dict(one.state_dict())
    x = inputs()
    assert torch.equal(one(x, context(), None)[0], other(x, context(), None)[0])


def test_any_name_makes_a_name_of_its_own():
    names = ("a.b", "a%2Eb", "a/b", "training", "a", "\u00e4 b", "weight")
    made = mixer("learned_gate", 1, names)
    assert len({name for name, _ in made.named_parameters()}) == len(names) + 1
    assert not any("." in name or "/" in name for name in made.names)


@pytest.mark.parametrize(("kinds", "croppable"), [((True, True), True), ((True, False), False)])
def test_a_cache_can_be_cropped_if_that_of_every_branch_can(kinds, croppable):
    branches = {str(i): Sums(1.0, kind) for i, kind in enumerate(kinds)}
    assert Mixer(Config, 0, branches=branches, selector="top_k", top_k=1).croppable == croppable


def test_an_unknown_selector_is_refused():
    with pytest.raises(ValueError, match="best"):
        mixer("best", 1)

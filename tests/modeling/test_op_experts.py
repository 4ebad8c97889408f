import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from eulerstack.modeling.initial import Constant, Init, Normal
from eulerstack.modeling.op_experts import Experts, run_all, run_within_capacity


def experts_of(d_model=6, experts=5, d_ff=7, *, bias=False, dtype=torch.float64):
    torch.manual_seed(1)
    made = Experts(d_model, experts=experts, d_ff=d_ff, activation="swiglu", bias=bias)
    for p in made.parameters():
        torch.nn.init.normal_(p)
    return made.to(dtype)


def one(made, e, x):
    """Expert `e` on one token, from the packed parameters."""
    h = made.gate_up_proj[e] @ x + (0 if made.gate_up_bias is None else made.gate_up_bias[e])
    gate, up = h[: len(h) // 2], h[len(h) // 2 :]
    return made.down_proj[e] @ (gate * gate.sigmoid() * up) + (0 if made.down_bias is None else made.down_bias[e])


def who_is_served(selected, keep, capacity, experts):
    """The (token, choice) pairs within capacity: choice by choice, token by token."""
    places, served = [0] * experts, set()
    for k in range(len(selected[0])):
        for n, row in enumerate(selected):
            if keep[n]:
                places[row[k]] += 1
                if places[row[k]] <= capacity:
                    served.add((n, k))
    return served


@given(st.lists(st.integers(0, 4), min_size=5, max_size=5), st.booleans())
@settings(max_examples=40, deadline=None)
def test_each_group_runs_through_its_expert(sizes, bias):
    made, x = experts_of(bias=bias), torch.randn(sum(sizes), 6, dtype=torch.float64)
    owner = [e for e, n in enumerate(sizes) for _ in range(n)]
    want = torch.stack([one(made, e, row) for e, row in zip(owner, x, strict=True)] or [torch.zeros(6)])[: len(x)]
    torch.testing.assert_close(made(x, torch.tensor(sizes)), want.to(x.dtype))
    with torch.no_grad():
        torch.testing.assert_close(made(x, torch.tensor(sizes)), want.to(x.dtype))


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="torch before 2.10 has no grouped_mm")
@pytest.mark.parametrize("bias", [False, True])
def test_the_grouped_product_equals_the_loop_with_gradients(monkeypatch, bias):
    made, x = experts_of(8, 4, 12, bias=bias, dtype=torch.float32), torch.randn(9, 8, requires_grad=True)
    results = []
    for grouped in (False, True):
        monkeypatch.setattr("eulerstack.modeling.op_experts._in_one_product", lambda *_, is_so=grouped: is_so)
        y = made(x, torch.tensor([3, 0, 5, 1]))
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *made.parameters()])))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("bias", [False, True])
def test_batched_equals_grouped(bias):
    made, x = experts_of(bias=bias), torch.randn(5, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(made(x).flatten(0, 1), made(x.flatten(0, 1), torch.full((5,), 4)))


def test_an_expert_that_nobody_chose_gets_a_zero_gradient():
    made = experts_of(bias=True)
    made(torch.randn(3, 6, dtype=torch.float64), torch.tensor([0, 2, 0, 1, 0])).sum().backward()
    for p in made.parameters():
        assert p.grad[[0, 2, 4]].abs().max() == 0
        assert p.grad[[1, 3]].abs().amin(0).max() > 0


def test_work_grows_with_the_assignments_not_with_the_experts():
    made, seen = experts_of(experts=64), []
    gated = made.gated
    made.gated = lambda gate, up: seen.append(tuple(gate.shape)) or gated(gate, up)
    x, selected = torch.randn(1, 6, dtype=torch.float64), torch.tensor([[3, 60]])
    got = run_all(made, x, selected, torch.tensor([[0.25, 0.75]], dtype=torch.float64), number=made.experts)
    assert seen == [(1, 7), (1, 7)]
    torch.testing.assert_close(got[0], 0.25 * one(made, 3, x[0]) + 0.75 * one(made, 60, x[0]))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_capacity_drops_exactly_what_it_should(data):
    n, k, experts = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3)), 5
    factor, padded = data.draw(st.sampled_from([0.3, 0.5, 1.0, 1.1, 1.25, 5.0])), data.draw(st.booleans())
    pick = st.permutations(range(experts)).map(lambda p: p[:k])
    selected = data.draw(st.lists(pick, min_size=n, max_size=n))
    keep = data.draw(st.lists(st.booleans(), min_size=n, max_size=n) | st.none())
    made = experts_of(experts=experts, bias=True)
    x, weights = torch.randn(n, 6, dtype=torch.float64), torch.rand(n, k, dtype=torch.float64)
    mask = None if keep is None else torch.tensor(keep)
    got = run_within_capacity(
        made, x, torch.tensor(selected), weights, mask, number=made.experts, factor=factor, padded=padded
    )

    real = keep or [True] * n
    exact = round(factor * 100) * sum(real) * k  # capacity = ceil(exact / (100 experts)) in whole numbers
    capacity = max(1, -(-exact // (100 * experts)))
    want = torch.zeros_like(x)
    for row, choice in who_is_served(selected, real, capacity, experts):
        want[row] += weights[row, choice] * one(made, selected[row][choice], x[row])
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("padded", [False, True])
def test_dropped_assignments_give_no_gradient_and_served_ones_do(padded):
    made, x = experts_of(), torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.ones(4, 1, dtype=torch.float64, requires_grad=True)
    selected = torch.tensor([[2], [2], [2], [0]])  # capacity 2 with factor 2.5: the third token is too late
    y = run_within_capacity(made, x, selected, weights, None, number=made.experts, factor=2.5, padded=padded)
    y.sum().backward()
    assert (y.abs().sum(-1) > 0).tolist() == [True, True, False, True]
    assert (x.grad.abs().sum(-1) > 0).tolist() == [True, True, False, True]
    assert (weights.grad[:, 0] != 0).tolist() == [True, True, False, True]
    assert all(torch.isfinite(p.grad).all() for p in made.parameters())


class Around(nn.Module):
    """As PEFT's wrapper of packed parameters: calls go through it, attributes do not."""

    def __init__(self, base_layer: nn.Module):
        super().__init__()
        self.base_layer = base_layer

    def forward(self, x, *args):
        return self.base_layer(x, *args)


def test_experts_inside_an_adapter_are_only_called():
    made, x = experts_of(), torch.randn(9, 6, dtype=torch.float64)
    selected, weights = torch.rand(9, 5).topk(2).indices, torch.rand(9, 2, dtype=torch.float64)
    want = run_all(made, x, selected, weights, number=5)
    assert torch.equal(run_all(Around(Around(made)), x, selected, weights, number=5), want)
    for padded in (False, True):
        limits = {"number": 5, "factor": 5.0, "padded": padded}
        got = run_within_capacity(Around(made), x, selected, weights, None, **limits)
        torch.testing.assert_close(got, want)


def test_capacity_is_not_raised_by_rounding():
    """1.1 * 50 / 5 is 11, though 11.000000000000002 in floating point."""
    made, x = experts_of(), torch.ones(50, 6, dtype=torch.float64)
    one_for_all, weights = torch.zeros(50, 1, dtype=torch.long), torch.ones(50, 1, dtype=torch.float64)
    y = run_within_capacity(made, x, one_for_all, weights, None, number=made.experts, factor=1.1, padded=False)
    assert (y.abs().sum(-1) > 0).tolist() == [True] * 11 + [False] * 39


def test_enough_capacity_drops_nothing():
    made, x = experts_of(), torch.randn(9, 6, dtype=torch.float64)
    selected, weights = torch.rand(9, 5).topk(2).indices, torch.rand(9, 2, dtype=torch.float64)
    want = run_all(made, x, selected, weights, number=made.experts)
    for padded in (False, True):
        got = run_within_capacity(made, x, selected, weights, None, number=made.experts, factor=5.0, padded=padded)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("padded", [False, True])
def test_a_capacity_beyond_all_tokens_is_room_for_all(padded):
    made, x = experts_of(), torch.randn(9, 6, dtype=torch.float64)
    selected, weights = torch.zeros(9, 1, dtype=torch.long), torch.ones(9, 1, dtype=torch.float64)
    wanted = run_all(made, x, selected, weights, number=made.experts)
    assert run_within_capacity(
        made, x, selected, weights, None, number=made.experts, factor=1e308, padded=padded
    ).allclose(wanted)


def test_initial_rules():
    init = Init("scaled_residual", 0.02, 8)
    assert experts_of().initial(init) == {"gate_up_proj": Normal(0.02), "down_proj": Normal(0.005)}
    biases = {"gate_up_bias": Constant(0.0), "down_bias": Constant(0.0)}
    assert experts_of(bias=True).initial(init).items() >= biases.items()
    mup = experts_of(d_model=16, d_ff=4).initial(Init("mup", 0.02, 8))
    assert mup == {"gate_up_proj": Normal(0.25), "down_proj": Normal(0.5)}

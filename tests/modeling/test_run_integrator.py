"""The integrators against the schemes written out, and their order of accuracy on an equation with a known solution."""

import math

import pytest
import torch
from torch import nn

from eulerstack.modeling.run_integrator import Run

RMS = {"type": "rmsnorm", "unit_offset": False, "bias": False}


class Growth(nn.Module):
    """A walk whose layer is x + rate x, so that the branch integrates to exp(rate) over unit time."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate, self.calls = rate, 0

    def layer(self, index, x):
        self.calls += 1
        return x + self.rate * x

    def see(self, index, x):
        self.last = x


def run(config, method, steps, output="hidden", rate=0.9):
    made = Run(config, {}, layer=0, method=method, steps=steps, output=output, norm=RMS).double()
    walk = Growth(rate)
    x = torch.linspace(0.5, 2, 6, dtype=torch.float64).view(1, 2, 3)
    with torch.no_grad():
        return x, made(x, walk), made, walk


@pytest.fixture
def config(payload, block, build):
    return build(payload(block(), hidden_size=3)).config


@pytest.mark.parametrize(("method", "evaluations"), [("discrete", 1), ("ode_euler", 1), ("ode_rk4", 4)])
def test_a_slot_for_every_evaluation(config, method, evaluations):
    _, _, made, walk = run(config, method, 3)
    assert made.slots == walk.calls == 3 * evaluations


def test_discrete_composes_the_layer(config):
    x, y, *_ = run(config, "discrete", 4)
    assert torch.allclose(y, x * 1.9**4, rtol=1e-12)


@pytest.mark.parametrize("steps", [1, 3])
def test_one_step_of_each_scheme(config, steps):
    h, a = 1 / steps, 0.9
    x, y, *_ = run(config, "ode_euler", steps)
    assert torch.allclose(y, x * (1 + h * a) ** steps, rtol=1e-12)
    x, y, *_ = run(config, "ode_rk4", steps)
    taylor = sum((h * a) ** n / math.factorial(n) for n in range(5))
    assert torch.allclose(y, x * taylor**steps, rtol=1e-12)


@pytest.mark.parametrize(("method", "order"), [("ode_euler", 1), ("ode_rk4", 4)])
def test_order_of_accuracy(config, method, order):
    errors = []
    for steps in (8, 16):
        x, y, *_ = run(config, method, steps)
        errors.append((y - x * math.exp(0.9)).abs().max().item())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.2)


def test_output_token_norms_the_result(config):
    x, y, made, walk = run(config, "ode_euler", 2, output="token")
    assert torch.allclose(y, made.norm(x * 1.45**2), rtol=1e-12)
    assert torch.equal(walk.last, y)
    assert run(config, "ode_euler", 2)[2].norm is None


def test_a_router_in_an_integrator_balances_once_a_step(payload, block, build):
    """Not once for each of the eight evaluations."""
    correction = {"bias_correction": {"enabled": True, "update_rate": 0.5, "target_imbalance": 0.0}}
    schedule = [{"type": "integrator", "layer": 0, "method": "ode_rk4", "steps": 2, "output": "hidden", "norm": RMS}]
    model = build(payload(block("attention", "moe", ffn_options=correction), schedule=schedule)).train()
    ids = torch.randint(2, 67, (2, 9), generator=torch.Generator().manual_seed(0))
    model(input_ids=ids, labels=ids)
    assert set(model.model.layers[0].ffn.router.correction_bias.abs().tolist()) <= {0.0, 0.5}
    assert model.model.layers[0].ffn.router.correction_bias.any()

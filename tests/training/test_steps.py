import math

import pytest
import torch

from eulerstack.training.steps import decreased, train_steps


class Quadratic(torch.nn.Module):
    """A "language model" whose loss is the square of its one weight, whatever it reads."""

    def __init__(self, start: float):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([start]))

    def forward(self, input_ids, labels, use_cache):
        assert use_cache is False
        return type("Output", (), {"loss": (self.weight**2).sum()})()


def batches(n):
    ids = torch.zeros(1, 2, dtype=torch.long)
    return iter([{"input_ids": ids, "labels": ids}] * n)


def test_the_loss_before_each_step_is_returned():
    losses = train_steps(Quadratic(1.0), batches(5), steps=4, lr=0.1)
    assert len(losses) == 4
    assert losses[0] == 1.0
    assert losses == sorted(losses, reverse=True)


def test_fewer_batches_than_steps_end_the_run():
    assert len(train_steps(Quadratic(1.0), batches(2), steps=9, lr=0.1)) == 2


def test_a_loss_that_is_not_finite_ends_the_run():
    losses = train_steps(Quadratic(float("inf")), batches(5), steps=5, lr=0.1)
    assert losses == [math.inf]
    assert not decreased(losses)


@pytest.mark.parametrize(
    ("losses", "down"),
    [
        ([3.0, 2.0, 1.0], True),
        ([3.0, 2.0, 2.0, 5.0], False),  # the last three on average are not below the first
        ([3.0, 3.0, 3.0], False),
        ([3.0], False),
        ([3.0, math.nan, 1.0], False),
        ([3.0, 1.0, math.inf], False),
    ],
)
def test_decreased(losses, down):
    assert decreased(losses) is down


def test_decreased_by_a_share():
    losses = [10.0, 9.95, 9.92]
    assert decreased(losses)
    assert not decreased(losses, by=0.01)
    assert decreased([10.0, 9.8, 9.7], by=0.01)

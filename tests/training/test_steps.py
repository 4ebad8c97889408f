import importlib
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eulerstack.training import steps
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


class Batches(torch.nn.Module):
    """A model whose loss depends on the batch alone, so that nothing can be learned."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, input_ids, labels, use_cache):
        return SimpleNamespace(loss=input_ids.float().mean() + self.weight)


@pytest.mark.parametrize(("lr", "said"), [(1e-9, "an obstacle"), (1.0, "")])
def test_an_easier_batch_after_a_hard_one_is_no_learning(monkeypatch, lr, said):
    """The loss is asked of the first batch again: the last three of training are lower here whatever the rate."""
    monkeypatch.syspath_prepend(Path(steps.__file__).parent)
    laws = importlib.import_module("laws")
    monkeypatch.setattr(laws, "_obstacle", lambda subject: "an obstacle")
    model, hard, easy = Batches(), torch.full((1, 4), 9), torch.full((1, 4), 5)
    subject = SimpleNamespace(model=model, batches=(hard, easy, easy, easy), steps=4, lr=lr, seed=1, losses=[])
    subject.loss = lambda: model(hard, hard, False).loss
    assert laws.learns(subject)[1] == said
    assert decreased(subject.losses[:-1])
    assert len(subject.losses) == subject.steps + 1

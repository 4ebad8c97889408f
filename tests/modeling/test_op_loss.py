"""The weighted cross entropy, by hand."""

import math

import pytest
import torch
from torch.nn import functional as F

from eulerstack.modeling.op_loss import IGNORED, Targets, token_loss


@pytest.fixture
def logits():
    return torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


TARGETS = torch.tensor([[3, IGNORED, 1, 6, 0], [2, 2, IGNORED, IGNORED, 5]])


def test_without_weights_it_is_the_mean(logits):
    want = F.cross_entropy(logits.flatten(0, 1), TARGETS.flatten(), ignore_index=IGNORED)
    assert torch.allclose(token_loss(logits, TARGETS), want, rtol=1e-14)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_equal_weights_are_none(logits, weight):
    weights = torch.full(TARGETS.shape, weight)
    assert torch.allclose(token_loss(logits, TARGETS, weights), token_loss(logits, TARGETS), rtol=1e-14)


def test_weights_by_hand(logits):
    weights = torch.tensor([[0.5, 9.0, 2.0, 0.0, 1.0], [1.0, 0.5, 9.0, 9.0, 3.0]], dtype=torch.float64)
    total = mass = 0.0
    for row in range(2):
        for place in range(5):
            target, weight = int(TARGETS[row, place]), float(weights[row, place])
            if target != IGNORED:
                numbers = [math.exp(x) for x in logits[row, place].tolist()]
                total -= weight * math.log(numbers[target] / sum(numbers))
                mass += weight
    assert token_loss(logits, TARGETS, weights).item() == pytest.approx(total / mass, rel=1e-12)
    assert token_loss(logits, TARGETS, weights, torch.tensor(11)).item() == pytest.approx(total / 11, rel=1e-12)


def test_nothing_to_predict_is_zero_with_a_gradient(logits):
    logits.requires_grad_()
    loss = token_loss(logits, torch.full_like(TARGETS, IGNORED), torch.zeros(TARGETS.shape))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_half_precision_is_computed_wide(logits):
    assert token_loss(logits.bfloat16(), TARGETS).dtype == torch.float32


def test_targets_look_ahead(logits):
    targets = Targets(TARGETS, torch.arange(10.0).view(2, 5), lambda hidden: hidden)
    counts = torch.tensor([[True, False, True], [True, True, True]])
    kept = TARGETS[:, 2:].masked_fill(~counts, IGNORED)
    want = token_loss(logits[:, :3], kept, torch.arange(10.0).view(2, 5)[:, 2:])
    assert torch.equal(targets.loss(logits[:, :3], 2, counts), want)

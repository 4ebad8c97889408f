"""Sinkhorn's iterations: sums of rows and columns, and extremes."""

import math

import pytest
import torch

from eulerstack.modeling.op_sinkhorn import sinkhorn


@pytest.mark.parametrize("n", [1, 2, 5])
def test_sinkhorn_is_doubly_stochastic(n):
    logits = 2 * torch.randn(4, n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for iterations, bound in ((0, math.inf), (3, 0.3), (20, 0.02), (200, 1e-6)):
        m = sinkhorn(logits, iterations)
        assert (m > 0).all()
        assert (m.sum(-2) - 1).abs().max() < 1e-12
        assert (m.sum(-1) - 1).abs().max() < bound


def test_sinkhorn_of_extreme_logits_is_finite():
    logits = torch.tensor([[800.0, -900.0], [700.0, 0.0]], requires_grad=True)
    m = sinkhorn(logits, 4)
    m[0, 0].backward()
    assert torch.isfinite(m).all()
    assert torch.isfinite(logits.grad).all()

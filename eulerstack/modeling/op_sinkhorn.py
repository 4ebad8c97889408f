"""Towards a doubly stochastic matrix: all entries positive, every row and every column summing to one.

Reference: Sinkhorn & Knopp 1967; Xie et al. 2025, mHC: Manifold-Constrained Hyper-Connections, section 4.
"""

import torch


def sinkhorn(logits: torch.Tensor, iterations: int) -> torch.Tensor:
    """exp(`logits`) [..., n, n] after so many times scaling its rows to sum to one, and then its columns.

    In logarithms, so that it is finite for any finite input. The columns sum to one exactly, the rows the better the
    more iterations; without any, only the columns are scaled, once. 1 x 1 is always 1.
    """
    for _ in range(iterations):
        logits = logits.log_softmax(-1).log_softmax(-2)
    return logits.softmax(-2)

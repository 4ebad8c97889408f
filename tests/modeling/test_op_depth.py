"""The tokens that a capacity chooses, against sorting by hand, and the borders of documents among those that pass.

B batch, T tokens.
"""

from itertools import pairwise
from pathlib import Path
from runpy import run_path

import pytest
import torch

from eulerstack.modeling.context import Context
from eulerstack.modeling.op_depth import best, masked

DEPTHS = run_path(str(Path(__file__).with_name("depths.py")))
B, T, KEEP, STARTS, CAPACITIES, every_fact, best_by_hand = (
    DEPTHS[name] for name in ("B", "T", "KEEP", "STARTS", "CAPACITIES", "every_fact", "best_by_hand")
)


def context(**facts) -> Context:
    places = torch.arange(T).expand(B, T)
    return Context(positions=places, key_positions=places, **facts)


@every_fact
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_best_of_each_document(capacity, facts):
    r = torch.randn(B, T, generator=torch.Generator().manual_seed(1))
    assert torch.equal(best(r, capacity, context(**facts)), best_by_hand(r, capacity, facts))


@pytest.mark.parametrize(("capacity", "count"), [(0.1, 3), (0.101, 4), (1 / 3, 10), (0.7, 21)])
def test_the_count_is_the_ceiling_of_the_share(capacity, count):
    places = torch.arange(30)[None]
    chosen = best(torch.randn(1, 30), capacity, Context(positions=places, key_positions=places))
    assert chosen.sum() == count


@pytest.mark.parametrize("cut", [1, 4, 10, T])
def test_a_document_starts_at_its_first_token_that_passes(cut):
    """In one call and in two, by hand: where the number of the document is not that of the last token that passed."""
    decided = torch.rand(B, T, generator=torch.Generator().manual_seed(3)) < 0.5
    number = STARTS.long().cumsum(1)
    want = torch.zeros(B, T, dtype=torch.bool)
    for b in range(B):
        passed = [t for t in range(T) if decided[b, t] and KEEP[b, t]]
        for before, t in pairwise(passed):
            want[b, t] = number[b, t] != number[b, before]
    assert want.any()
    past, starts, renewed, real = None, [], [], None
    for a, z in ((0, cut), (cut, T)):
        seen = Context(
            positions=number[:, a:z], keep=KEEP[:, a:z], starts=STARTS[:, a:z], key_documents=number[:, :z], past=a
        )
        inner, past = masked(decided[:, a:z], seen, past)
        real, starts, renewed = inner.key_keep, [*starts, inner.starts], [*renewed, inner.renewed]
        assert torch.equal(inner.keep, (decided & KEEP)[:, a:z])
    assert torch.equal(torch.cat(starts, 1), want)
    assert torch.equal(real, decided & KEEP)
    assert torch.equal(torch.cat(renewed, 1), want & _begun_inside(decided & KEEP, cut))


def _begun_inside(passed: torch.Tensor, cut: int) -> torch.Tensor:
    """Whether a document has begun inside a call, after the token of the row that passed last, up to each token."""
    found = torch.zeros(B, T, dtype=torch.bool)
    for b in range(B):
        firsts = [next((t for t in range(a, z) if KEEP[b, t]), None) for a, z in ((0, cut), (cut, T))]
        inside = [bool(STARTS[b, t]) and t not in firsts for t in range(T)]
        for t in range(T):
            last = max((s for s in range(t) if passed[b, s]), default=-1)
            found[b, t] = any(inside[last + 1 : t + 1])
    return found

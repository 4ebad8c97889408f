"""Rows whose tokens a capacity chooses, and the choice by sorting. Read by path (runpy).

B batch, T tokens.
"""

import math

import pytest
import torch

B, T = 3, 11
KEEP = torch.ones(B, T, dtype=torch.bool)
KEEP[0, :4] = KEEP[1, 7:] = KEEP[2, 5] = False
STARTS = torch.zeros(B, T, dtype=torch.bool)
STARTS[0, 6] = STARTS[1, 2] = STARTS[1, 3] = STARTS[2, 8] = True
FACTS = [{}, {"keep": KEEP}, {"starts": STARTS}, {"keep": KEEP, "starts": STARTS}]
every_fact = pytest.mark.parametrize("facts", FACTS, ids=lambda facts: "+".join(facts) or "plain")
CAPACITIES = (0.01, 0.3, 0.5, 1.0)


def documents(facts: dict) -> list[list[int]]:
    """The real tokens of each document as places b * T + t."""
    found = []
    for b in range(B):
        found.append([])
        for t in range(T):
            if facts.get("starts") is not None and facts["starts"][b, t]:
                found.append([])
            if facts.get("keep") is None or facts["keep"][b, t]:
                found[-1].append(b * T + t)
    return found


def best_by_hand(r: torch.Tensor, capacity: float, facts: dict) -> torch.Tensor:
    chosen, flat = torch.zeros(B * T, dtype=torch.bool), r.flatten()
    for places in documents(facts):
        count = math.ceil(round(capacity * len(places), 6))
        for place in sorted(places, key=lambda p: -flat[p].item())[:count]:
            chosen[place] = True
    return chosen.view(B, T)

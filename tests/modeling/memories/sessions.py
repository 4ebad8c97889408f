"""A memory alone under the calls of a decoder; float64, odd sizes. Read by path (runpy)."""

import pytest
import torch

from eulerstack.modeling.cache import EulerStackCache
from eulerstack.modeling.op_context import build_context

PERSISTENCES = ("per_query", "session", "persistent")
B, T, D, P = 3, 41, 14, 5
EXACT = 1e-9
every_persistence = pytest.mark.parametrize("persistence", PERSISTENCES)


class Session:
    """Calls on one memory, with the history that a decoder would keep between them."""

    def __init__(self, memory):
        self.memory, self.past, self.state = memory, EulerStackCache(1), None

    def __call__(self, x, keep=None, places=None):
        context = build_context(
            x, past=self.past, attention_mask=keep, position_ids=places, use_cache=True, input_ids=None, extra={}
        )
        y, self.state = self.memory(x, context, self.state)
        self.past.advance([self.state], context.key_positions, context.key_keep, context.key_documents)
        return y


def whole(memory, x, **named):
    with torch.no_grad():
        return Session(memory)(x, **named)


def in_calls(memory, x, lengths, keep=None, places=None):
    session, out = Session(memory), []
    with torch.no_grad():
        for now in torch.arange(x.shape[1]).split(lengths):
            cut = [None if t is None else t[:, now] for t in (keep, places)]
            out.append(session(x[:, now], *cut))
    return torch.cat(out, 1), session.state


def close(a, b):
    gap = (a - b).abs().max().item() / b.std().item()
    assert gap < EXACT, f"{gap:.1e} standard deviations apart"


def places(*lengths):
    return torch.cat([torch.arange(n) for n in lengths])[None]


def remembered(memory, x):
    """The memory after a session of its own has been put into its buffers."""
    session = Session(memory)
    with torch.no_grad():
        session(x)
    memory.remember(session.state, row=1)
    return session.state

"""Seats in mini-batches against a walk over the tokens, one at a time."""

import pytest
import torch

from eulerstack.modeling.context import Context
from eulerstack.modeling.op_minibatch import arrange

B, T = 4, 17
KEEP = torch.ones(B, T, dtype=torch.bool)
KEEP[0, :5] = KEEP[1, 9:] = KEEP[2, 3:6] = KEEP[2, 10] = False  # left, right, in the middle
STARTS = torch.zeros(B, T, dtype=torch.bool)
STARTS[0, 5] = STARTS[0, 7] = STARTS[1, 1] = STARTS[1, 2] = STARTS[2, 9] = STARTS[2, 16] = True
HOLLOW = STARTS.clone()
HOLLOW[1, 12] = HOLLOW[2, 4] = True  # on padding: after the last real token, and in the middle
FILLED = torch.tensor([2, 0, 1, 2])
CASES = {
    "plain": (None, None, None),
    "padded": (KEEP, None, None),
    "packed": (None, STARTS, None),
    "both": (KEEP, STARTS, None),
    "continued": (None, None, FILLED),
    "all": (KEEP, STARTS, FILLED),
    "hollow": (KEEP, HOLLOW, FILLED),
}


def context(keep=None, starts=None, t=T):
    return Context(positions=torch.zeros(B, t, dtype=torch.long), keep=keep, starts=starts)


def walk(keep, starts, filled, size, b):
    """The mini-batches of row b as [fresh, {slot: token}], and the tokens of the open one."""
    batches, held, fresh = [], 0 if filled is None else int(filled[b]), False
    for t in range(T):
        if starts is not None and starts[b, t]:
            held, fresh = 0, True
        if keep is not None and not keep[b, t]:
            continue
        if held == 0 or not batches:
            batches.append([fresh, {}])
        batches[-1][1][held] = t
        held, fresh = (held + 1) % size, False
    return batches + ([[True, {}]] if fresh else []), held


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 3, 4, 40])
def test_seats_are_those_of_a_walk_over_the_tokens(case, size):
    keep, starts, filled = CASES[case]
    filled = None if filled is None else filled % size
    seats = arrange(context(keep, starts), size, filled)
    n = seats.slots.shape[1]
    want, want_filled = zip(*(walk(keep, starts, filled, size, b) for b in range(B)), strict=True)
    for b in range(B):
        rows = want[b] + [[False, {}]] * (n - len(want[b]))
        assert seats.slots[b].tolist() == [[row[1].get(z, -1) for z in range(size)] for row in rows]
        assert seats.fresh[b].tolist() == [row[0] for row in rows]
    assert seats.filled.tolist() == list(want_filled)
    if starts is not None:
        assert n == max(len(batches) for batches in want)
    assert torch.equal(seats.mask, seats.slots >= 0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_gather_and_scatter_move_values_and_gradients(case, shape):
    keep, starts, filled = CASES[case]
    seats = arrange(context(keep, starts), 4, filled)
    x = torch.randn(B, T, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    seated = seats.gather(x)
    assert seated.shape == (*seats.slots.shape, *shape)
    for b, row in enumerate(seats.slots.tolist()):
        for n, batch in enumerate(row):
            for z, token in enumerate(batch):
                assert torch.equal(seated[b, n, z], x[b, token] if token >= 0 else torch.zeros_like(x[b, 0]))
    back = seats.scatter(seated + 1)
    real = torch.ones(B, T, dtype=torch.bool) if keep is None else keep
    real = real.reshape(B, T, *[1] * len(shape))
    assert torch.equal(back, (x + 1) * real)
    weight = torch.randn_like(back)
    assert torch.equal(torch.autograd.grad((back * weight).sum(), x)[0], weight * real)


@pytest.mark.parametrize("cuts", [[1] * T, [5, 1, 11], [9, 8]])
@pytest.mark.parametrize("case", ["plain", "padded", "packed", "both"])
def test_calls_fill_the_mini_batches_of_the_whole(case, cuts):
    keep, starts, _ = CASES[case]
    size, filled, at = 4, None, 0
    seat = {(b, t): (n, z) for b, n, z, t in flat(arrange(context(keep, starts), size), 0)}
    base, whole, parts = [0] * B, {}, {}
    for b, t in seat:
        whole.setdefault((b, seat[b, t][0]), []).append((seat[b, t][1], t))
    for cut in cuts:
        now = slice(at, at + cut)
        seats = arrange(context(*(None if m is None else m[:, now] for m in (keep, starts)), t=cut), size, filled)
        for b, _, z, t in flat(seats, at):
            if z == 0:
                base[b] += 1
            parts.setdefault((b, base[b] - 1), []).append((z, t))
        filled, at = seats.filled, at + cut
    assert parts == whole
    assert torch.equal(filled, arrange(context(keep, starts), size).filled)


def flat(seats, offset):
    """[row, mini-batch, slot, token] of each filled slot, in the order of tokens."""
    return [(b, n, z, int(seats.slots[b, n, z]) + offset) for b, n, z in seats.mask.nonzero().tolist()]


def test_a_single_token_needs_one_mini_batch():
    seats = arrange(context(t=1), 3, FILLED)
    assert seats.slots.tolist() == [[[-1, -1, 0]], [[0, -1, -1]], [[-1, 0, -1]], [[-1, -1, 0]]]
    assert seats.filled.tolist() == [0, 1, 2, 0]
    assert seats.mask[..., -1].tolist() == [[True], [False], [False], [True]], "complete"

"""The three forms of retention against the recurrence written out token by token; float64, gradients included."""

import pytest
import torch

from eulerstack.modeling.op_retention import retention

B, T, E, P = 3, 23, 5, 7
KEEP = torch.ones(B, T, dtype=torch.bool)
KEEP[0, :4] = KEEP[1, 19:] = KEEP[2, 3:6] = KEEP[2, 10] = False  # left, right, in the middle
STARTS = torch.zeros(B, T, dtype=torch.bool)
STARTS[0, 9] = STARTS[1, 0] = STARTS[1, 1] = STARTS[1, 8] = STARTS[2, 17] = True
LOG_DECAY = torch.tensor([0.5, 0.9, 0.97, 1 - 2.0**-9, 0.8, 0.99], dtype=torch.float64).log()
every_layout = pytest.mark.parametrize(
    ("keep", "starts"),
    [(None, None), (KEEP, None), (None, STARTS), (KEEP, STARTS)],
    ids=["plain", "padded", "packed", "both"],
)


def tensors(groups=2, dtype=torch.float64):
    torch.manual_seed(0)
    heads = len(LOG_DECAY)
    shapes = (B, T, heads, E), (B, T, groups, E), (B, T, groups, P), (B, heads, E, P)
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes]


def by_hand(q, k, v, state, keep, starts):
    """Sun et al. 2023, equation 6, head by head and token by token."""
    outputs, lasts = torch.zeros(*q.shape[:3], P, dtype=q.dtype), []
    heads, share = q.shape[2], q.shape[2] // k.shape[2]
    for b in range(B):
        for h in range(heads):
            S = state[b, h]
            for t in range(q.shape[1]):
                if starts is not None and starts[b, t]:
                    S = torch.zeros_like(S)
                if keep is None or keep[b, t]:
                    S = LOG_DECAY[h].exp() * S + k[b, t, h // share, :, None] * v[b, t, h // share]
                    outputs = outputs.index_put(
                        (torch.tensor(b), torch.tensor(t), torch.tensor(h)), (q[b, t, h, :, None] * S).sum(0)
                    )
            lasts.append(S)
    return outputs, torch.stack(lasts).view(B, heads, E, P)


@every_layout
@pytest.mark.parametrize(("chunk", "groups"), [(T, 6), (4, 2), (1, 1), (256, 3), (6, 6)])
def test_outputs_state_and_gradients_are_those_of_the_recurrence(chunk, groups, keep, starts):
    q, k, v, state = leaves = tensors(groups)
    got = retention(q, k, v, LOG_DECAY, chunk, state, keep, starts)
    want = by_hand(q, k, v, state, keep, starts)
    real = torch.ones(B, T, 1, 1) if keep is None else keep[..., None, None]
    up = torch.randn_like(want[0]) * real, torch.randn_like(want[1])
    torch.testing.assert_close(got[0] * real, want[0])
    torch.testing.assert_close(got[1], want[1])
    torch.testing.assert_close(*(torch.autograd.grad(out, leaves, up) for out in (got, want)))


@every_layout
def test_the_recurrent_form_is_the_parallel_one(keep, starts):
    q, k, v, state = leaves = tensors()
    whole = retention(q, k, v, LOG_DECAY, T, state, keep, starts)
    outputs, now = [], state
    for t in range(T):
        at = slice(t, t + 1)
        masks = (None if m is None else m[:, at] for m in (keep, starts))
        y, now = retention(q[:, at], k[:, at], v[:, at], LOG_DECAY, T, now, *masks)
        outputs.append(y)
    real = torch.ones(B, T, 1, 1) if keep is None else keep[..., None, None]
    steps = torch.cat(outputs, 1)
    torch.testing.assert_close(steps * real, whole[0] * real)
    torch.testing.assert_close(now, whole[1])
    up = torch.randn_like(steps) * real, torch.randn_like(now)
    torch.testing.assert_close(*(torch.autograd.grad(out, leaves, up) for out in (whole, (steps, now))))


def test_without_a_state_before_it_is_zero():
    q, k, v, state = tensors()
    got, want = (retention(q, k, v, LOG_DECAY, 4, before) for before in (None, torch.zeros_like(state)))
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("chunk", [64, 1500])
def test_a_fast_decay_over_a_long_text_neither_overflows_nor_underflows(chunk):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1500, 2, n) for n in (E, E, P))
    log_decay = torch.tensor([1e-3, 0.5]).log()
    y, last = retention(q, k, v, log_decay, chunk)
    exact = retention(*(x.double() for x in (q, k, v)), log_decay.double(), chunk)
    torch.testing.assert_close((y, last), tuple(x.float() for x in exact), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, T])
def test_autocast_does_not_reach_inside(tokens):
    q, k, v, state = (x.detach().float() for x in tensors())
    q, k, v = (x[:, :tokens] for x in (q, k, v))
    want = retention(q, k, v, LOG_DECAY, 4, state)
    with torch.autocast("cpu", torch.bfloat16):
        got = retention(q, k, v, LOG_DECAY, 4, state)
    torch.testing.assert_close(got, want, rtol=0, atol=0)

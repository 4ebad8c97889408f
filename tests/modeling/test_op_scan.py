"""The selective scan against its recurrence, one token at a time, in float64."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from eulerstack.modeling.op_scan import scan_, selective_scan

B, T, C, N = 2, 19, 3, 5
RESETS = torch.zeros(B, T, dtype=torch.bool)
RESETS[0, 0] = RESETS[0, 7] = RESETS[0, 8] = RESETS[1, 18] = True
CUTS = [[6, 1, 12], [1] * T]


def by_hand(x, step, A, B_, C_, h, resets):
    """h_t = exp(step_t A) h_{t-1} + step_t B_t x_t, y_t = C_t h_t."""
    outputs = []
    for t in range(x.shape[1]):
        if resets is not None:
            h = h.masked_fill(resets[:, t, None, None], 0.0)
        h = (step[:, t, :, None] * A).exp() * h + (step[:, t] * x[:, t])[..., None] * B_[:, t, None]
        outputs.append((h * C_[:, t, None]).sum(-1))
    return torch.stack(outputs, 1), h


def leaves(dtype=torch.float64):
    torch.manual_seed(0)
    shapes = (B, T, C), (B, T, C), (C, N), (B, T, N), (B, T, N), (B, C, N)
    x, step, A, *rest = (torch.randn(s, dtype=dtype) for s in shapes)
    return [t.requires_grad_() for t in (x, step.abs(), -A.abs(), *rest)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", range(1, 20))
def test_scan_in_place(n, reverse):
    torch.manual_seed(n)
    decay, h = torch.randn(2, n, 3, dtype=torch.float64), torch.randn(2, n, 3, dtype=torch.float64)
    want, last = torch.zeros_like(h), 0
    for t in reversed(range(n)) if reverse else range(n):
        want[:, t] = last = decay[:, t] * last + h[:, t]
    scan_(decay, h, reverse=reverse)
    torch.testing.assert_close(h, want)


@pytest.mark.parametrize("resets", [None, RESETS], ids=["whole", "packed"])
@pytest.mark.parametrize("chunk", [1, 4, 7, None, 64])
def test_outputs_state_and_gradients_are_those_of_the_recurrence(chunk, resets):
    inputs = leaves()
    got, want = selective_scan(*inputs, resets, chunk), by_hand(*inputs, resets)
    torch.testing.assert_close(got, want)
    with torch.no_grad():
        torch.testing.assert_close(selective_scan(*inputs, resets, chunk), want)
    up = [torch.randn_like(t) for t in want]
    torch.testing.assert_close(*(torch.autograd.grad(outputs, inputs, up) for outputs in (got, want)))


@pytest.mark.parametrize("cuts", CUTS, ids=["chunks", "steps"])
def test_pieces_give_the_whole(cuts):
    x, step, A, B_, C_, initial = leaves()
    want, outputs, t = selective_scan(x, step, A, B_, C_, initial, RESETS), [], 0
    for n in cuts:
        now = slice(t, t + n)
        y, initial = selective_scan(x[:, now], step[:, now], A, B_[:, now], C_[:, now], initial, RESETS[:, now])
        outputs.append(y)
        t += n
    torch.testing.assert_close((torch.cat(outputs, 1), initial), want)


def test_a_step_of_zero_holds_the_state_to_the_last_bit():
    x, step, A, B_, C_, initial = (t.detach().float() for t in leaves())
    _, last = selective_scan(x, torch.zeros_like(step), A, B_, C_, initial)
    assert torch.equal(last, initial)


@pytest.mark.parametrize("rate", [1e-6, 1.0, 1e4, 1e30])
def test_any_decay_is_stable_in_float32(rate):
    x, step, A, B_, C_, initial = (t.detach().float() for t in leaves())
    inputs = [t.requires_grad_() for t in (x, step, A * rate, B_, C_, initial)]
    got, want = selective_scan(*inputs, chunk=16), by_hand(*(t.double() for t in inputs), None)
    torch.testing.assert_close(got, tuple(t.float() for t in want), atol=1e-5, rtol=1e-5)
    grads = [torch.autograd.grad(y.sum() + h.sum(), inputs) for y, h in (got, want)]
    torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)


def test_a_row_of_a_batch_is_the_row_alone():
    inputs = [t.detach() for t in leaves()]
    alone = [t if t is inputs[2] else t[1:] for t in inputs]
    for whole, part in zip(selective_scan(*inputs), selective_scan(*alone), strict=True):
        torch.testing.assert_close(whole[1:], part)


def test_the_states_of_all_tokens_are_not_kept():
    tokens, states, kept = 256, 16, []
    x, step = torch.randn(1, tokens, 8, requires_grad=True), torch.rand(1, tokens, 8)
    A, B_ = -torch.rand(8, states), torch.randn(1, tokens, states)
    with saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        selective_scan(x, step, A, B_, B_)
    assert 0 < sum(kept) < tokens * 8 * states / 2

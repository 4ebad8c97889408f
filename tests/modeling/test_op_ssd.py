"""The chunked state space dual form against its recurrence, one token at a time, in float64."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from eulerstack.modeling.op_ssd import ssd

B, T, H, P, G, N = 2, 19, 6, 3, 2, 5
RESETS = torch.zeros(B, T, dtype=torch.bool)
RESETS[0, 0] = RESETS[0, 7] = RESETS[0, 8] = RESETS[1, 18] = True


def by_hand(x, exponents, B_, C_, h, resets):
    """h_t = exp(e_t) h_{t-1} + x_t B_t^T, y_t = h_t C_t; head i reads group i // (H / G)."""
    B_, C_ = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (B_, C_))
    outputs = []
    for t in range(x.shape[1]):
        if resets is not None:
            h = h.masked_fill(resets[:, t, None, None, None], 0.0)
        h = exponents[:, t].exp()[..., None, None] * h + x[:, t, ..., None] * B_[:, t, :, None]
        outputs.append((h * C_[:, t, :, None]).sum(-1))
    return torch.stack(outputs, 1), h


def leaves(dtype=torch.float64):
    torch.manual_seed(0)
    shapes = (B, T, H, P), (B, T, H), (B, T, G, N), (B, T, G, N), (B, H, P, N)
    x, exponents, *rest = (torch.randn(s, dtype=dtype) for s in shapes)
    return [t.requires_grad_() for t in (x, -exponents.abs(), *rest)]


def run(inputs, chunk_size, resets=None):
    return ssd(*inputs[:4], chunk_size, inputs[4], resets)


@pytest.mark.parametrize("resets", [None, RESETS], ids=["whole", "packed"])
@pytest.mark.parametrize("chunk_size", [1, 4, 7, 19, 256])
def test_outputs_state_and_gradients_are_those_of_the_recurrence(chunk_size, resets):
    inputs = leaves()
    got, want = run(inputs, chunk_size, resets), by_hand(*inputs, resets)
    torch.testing.assert_close(got, want)
    up = [torch.randn_like(t) for t in want]
    torch.testing.assert_close(*(torch.autograd.grad(outputs, inputs, up) for outputs in (got, want)))


@pytest.mark.parametrize("cuts", [[6, 1, 12], [1] * T], ids=["chunks", "steps"])
def test_pieces_give_the_whole(cuts):
    *inputs, initial = leaves()
    want, outputs, t = run((*inputs, initial), 4, RESETS), [], 0
    for n in cuts:
        now = slice(t, t + n)
        y, initial = run((*(i[:, now] for i in inputs), initial), 4, RESETS[:, now])
        outputs.append(y)
        t += n
    torch.testing.assert_close((torch.cat(outputs, 1), initial), want)


def test_tokens_of_zeros_hold_the_state_to_the_last_bit():
    x, exponents, B_, C_, initial = (t.detach().float() for t in leaves())
    _, last = ssd(x * 0, exponents * 0, B_, C_, 4, initial)
    assert torch.equal(last, initial)


@pytest.mark.parametrize("rate", [1e-6, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("resets", [None, RESETS], ids=["whole", "packed"])
def test_any_decay_is_stable_in_float32(rate, resets):
    x, exponents, *rest = (t.detach().float() for t in leaves())
    inputs = [t.requires_grad_() for t in (x, exponents * rate, *rest)]
    got, want = run(inputs, 256, resets), by_hand(*(t.double() for t in inputs), resets)
    torch.testing.assert_close(got, tuple(t.float() for t in want), atol=1e-5, rtol=1e-5)
    grads = [torch.autograd.grad(y.sum() + h.sum(), inputs) for y, h in (got, want)]
    torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)


def test_far_into_a_chunk_a_decay_keeps_its_precision():
    """Running sums near -5000 and steps of -0.01: a difference of float32 sums would be wrong in the third digit."""
    exponents = torch.full((1, 256, 1), -20.0)
    exponents[:, 250:] = -0.01
    ones = torch.ones(1, 256, 1, 1)
    got, want = (
        ssd(ones.to(d), exponents.to(d), ones.to(d), ones.to(d), 256)[0] for d in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(got, want.float(), atol=1e-6, rtol=1e-6)


def test_the_weights_between_tokens_are_not_kept():
    tokens, kept = 256, []
    x, exponents = torch.randn(1, tokens, 2, 4, requires_grad=True), -torch.rand(1, tokens, 2)
    B_ = torch.randn(1, tokens, 1, 4)
    with saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        ssd(x, exponents, B_, B_, 256)
    assert 0 < sum(kept) < tokens * tokens / 4


def test_a_short_call_costs_its_own_length_not_that_of_a_chunk():
    inputs, flops = [t.detach() for t in leaves()], []
    for chunk_size in (1, 256):
        with FlopCounterMode(display=False) as counter:
            run([*(t[:, :1] for t in inputs[:4]), inputs[4]], chunk_size)
        flops.append(counter.get_total_flops())
    assert flops[0] == flops[1] > 0

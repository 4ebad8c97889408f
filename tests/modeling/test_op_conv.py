"""The short convolution against a list of past tokens, one token at a time, in float64."""

import math

import pytest
import torch
from torch import nn

from eulerstack.modeling.initial import Init, draw
from eulerstack.modeling.op_conv import ShortConv, causal_conv

B, T, C = 3, 13, 5
KEEP = torch.ones(B, T, dtype=torch.bool)
KEEP[0, :4] = KEEP[1, 9:] = KEEP[2, 3:6] = KEEP[2, 10] = False  # left, right, in the middle
RESETS = torch.zeros(B, T, dtype=torch.bool)
RESETS[0, 0] = RESETS[0, 6] = RESETS[1, 1] = RESETS[1, 2] = RESETS[2, 7] = RESETS[2, 12] = True


def by_hand(x, weight, bias, tail, keep, resets):
    """y_t = bias + sum over j of weight[K-1-j] x_{t-j} over real tokens of the document; 0 at padding."""
    taps, rows, tails = weight.shape[-1], [], []
    for b in range(x.shape[0]):
        past, row = [tail[b, :, k] for k in range(taps - 1)], []
        for t in range(x.shape[1]):
            if resets is not None and resets[b, t]:
                past = []
            if keep is not None and not keep[b, t]:
                row.append(torch.zeros_like(x[b, t]))
                continue
            past.append(x[b, t])
            seen = list(enumerate(reversed(past)))[:taps]
            row.append(sum((weight[:, 0, taps - 1 - j] * v for j, v in seen), 0 if bias is None else bias))
        past = [torch.zeros_like(x[b, 0])] * (taps - 1) + past
        rows.append(torch.stack(row))
        tails.append(torch.stack(past[len(past) - taps + 1 :], 1) if taps > 1 else x.new_zeros(C, 0))
    return torch.stack(rows), torch.stack(tails)


def leaves(taps, bias=True):
    torch.manual_seed(taps)
    shapes = (B, T, C), (C, 1, taps), (C,), (B, C, taps - 1)
    x, weight, b, tail = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes)
    return x, weight, b if bias else None, tail


@pytest.mark.parametrize("resets", [None, RESETS], ids=["whole", "packed"])
@pytest.mark.parametrize("keep", [None, KEEP], ids=["full", "padded"])
@pytest.mark.parametrize(("taps", "bias"), [(1, True), (2, False), (4, True)])
def test_outputs_tail_and_gradients_are_those_of_the_definition(taps, bias, keep, resets):
    x, weight, b, tail = leaves(taps, bias)
    real = torch.ones(B, T, 1) if keep is None else keep[..., None]
    got, want = causal_conv(x, weight, b, tail, keep, resets), by_hand(x, weight, b, tail, keep, resets)
    torch.testing.assert_close(got[0] * real, want[0] * real)
    torch.testing.assert_close(got[1], want[1])
    up = torch.randn(B, T, C, dtype=torch.float64) * real, torch.randn_like(want[1])
    inputs = [t for t in (x, weight, b, tail) if t is not None and t.numel()]
    grads = [
        torch.autograd.grad((y * up[0]).sum() + (last * up[1]).sum(), inputs, allow_unused=True, materialize_grads=True)
        for y, last in (got, want)
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("resets", [None, RESETS], ids=["whole", "packed"])
@pytest.mark.parametrize("keep", [None, KEEP], ids=["full", "padded"])
@pytest.mark.parametrize("cuts", [[5, 1, 7], [1] * T], ids=["chunks", "steps"])
def test_pieces_give_the_whole(cuts, keep, resets):
    x, weight, bias, _ = leaves(4)
    want, want_tail = causal_conv(x, weight, bias, None, keep, resets)
    real = torch.ones(B, T, 1) if keep is None else keep[..., None]
    got, tail, t = [], None, 0
    for n in cuts:
        now = slice(t, t + n)
        part = [None if m is None else m[:, now] for m in (keep, resets)]
        y, tail = causal_conv(x[:, now], weight, bias, tail, *part)
        got.append(y)
        t += n
    torch.testing.assert_close(torch.cat(got, 1) * real, want * real)
    torch.testing.assert_close(tail, want_tail)


def test_it_is_the_depthwise_convolution_of_torch():
    conv = nn.Conv1d(C, C, 4, groups=C, padding=3)
    ours = ShortConv(C, 4, bias=True)
    ours.load_state_dict(conv.state_dict())
    x = torch.randn(B, T, C)
    got, _ = causal_conv(x, ours.weight, ours.bias)
    torch.testing.assert_close(got, conv(x.mT)[..., :T].mT)


def test_the_tail_does_not_keep_the_sequence_alive():
    x, weight, bias, _ = leaves(4)
    _, tail = causal_conv(x, weight, bias)
    assert tail.untyped_storage().nbytes() == B * C * 3 * 8


def test_it_starts_as_a_convolution_of_torch_does():
    conv = ShortConv(4000, 4, bias=True)
    rules = conv.initial(Init("normal", 0.02, 3))
    assert rules.keys() == dict(conv.named_parameters(recurse=False)).keys()
    for name, parameter in conv.named_parameters():
        draw(parameter, rules[name])
        assert parameter.abs().max() <= 0.5, "1 / sqrt(K)"
        assert math.isclose(parameter.std().item(), 0.5 / math.sqrt(3), rel_tol=0.05)

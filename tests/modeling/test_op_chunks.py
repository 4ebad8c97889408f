"""The chunked recurrence with a rule small enough to read: h_t = w h_{t-1} + x_t, y_t = h_t."""

import pytest
import torch

from eulerstack.modeling.op_chunks import ChunkRule, scan_chunks


def run(x, w, resets, before):
    states = []
    for t in range(x.shape[1]):
        if resets is not None:
            before = before.masked_fill(resets[:, t], 0.0)
        before = w * before + x[:, t]
        states.append(before)
    return torch.stack(states, 1), before


def forward(inputs, params, resets, before):
    return run(*inputs, *params, resets, before)


def backward(inputs, params, resets, before, dy, dafter):
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (*inputs, *params, before)]
        dx, dw, dbefore = torch.autograd.grad(run(*leaves[:2], resets, leaves[2]), leaves, (dy, dafter))
    return (dx,), (dw,), dbefore


RULE = ChunkRule(forward, backward)
RESETS = torch.zeros(2, 7, dtype=torch.bool)
RESETS[0, 3] = RESETS[1, 0] = True


@pytest.mark.parametrize("resets", [None, RESETS], ids=["whole", "packed"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 50])
def test_gradients_pass_from_chunk_to_chunk(chunk, resets):
    torch.manual_seed(0)
    leaves = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in ((2, 7), (), (2,))]
    assert torch.autograd.gradcheck(lambda x, w, h: scan_chunks(RULE, (x,), (w,), h, resets, chunk), leaves)
    got = scan_chunks(RULE, leaves[:1], leaves[1:2], leaves[2], resets, chunk)
    torch.testing.assert_close(got, run(leaves[0], leaves[1], resets, leaves[2]))


def test_second_derivatives_are_refused_not_wrong():
    x = torch.randn(2, 5, requires_grad=True)
    y, _ = scan_chunks(RULE, (x,), (torch.tensor(0.5),), torch.zeros(2), None, 2)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second ones"):
        torch.autograd.grad(grad.sum() + x.square().sum(), x, retain_graph=True)
    with pytest.raises(RuntimeError, match="second ones"):
        grad.sum().backward()


def test_autocast_stays_outside():
    def product(inputs, params, resets, before):
        return inputs[0] @ params[0], before

    x, w = torch.randn(2, 5, 8), torch.randn(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = scan_chunks(ChunkRule(product, None), (x,), (w,), torch.zeros(2), None, 2)
    torch.testing.assert_close(y, x @ w)

"""The delta rule in chunks against its recurrence, one token at a time, in float64."""

import pytest
import torch

from eulerstack.modeling.op_delta import delta_rule

B, T, H, P, N = 2, 19, 3, 4, 5
RESETS = torch.zeros(B, T, dtype=torch.bool)
RESETS[0, 0] = RESETS[0, 7] = RESETS[0, 8] = RESETS[1, 18] = True


def by_hand(q, k, v, b, start, before, resets):
    """S_t = S_{t-1} + b_t (v_t - S_{t-1} k_t) k_t^T, y_t = S_t q_t."""
    state = start.expand(B, -1, -1, -1) if before is None else before
    reads = []
    for t in range(T):
        if resets is not None:
            state = torch.where(resets[:, t, None, None, None], start, state)
        error = v[:, t] - (state * k[:, t, :, None]).sum(-1)
        state = state + b[:, t, :, None, None] * error[..., None] * k[:, t, :, None]
        reads.append((state * q[:, t, :, None]).sum(-1))
    return torch.stack(reads, 1), state


def leaves():
    torch.manual_seed(0)
    q, k, v, b = (torch.randn(B, T, H, n, dtype=torch.float64) for n in (N, N, P, 1))
    k = k / k.norm(dim=-1, keepdim=True)
    start, before = torch.randn(H, P, N, dtype=torch.float64), torch.randn(B, H, P, N, dtype=torch.float64)
    return [t.requires_grad_() for t in (q, k, v, b[..., 0].sigmoid(), start, before)]


@pytest.mark.parametrize("resets", [None, RESETS], ids=["whole", "packed"])
@pytest.mark.parametrize("continued", [True, False])
@pytest.mark.parametrize("chunk", [1, 4, 7, 19, 64])
def test_reads_state_and_gradients_are_those_of_the_recurrence(chunk, continued, resets):
    inputs = leaves()
    inputs = inputs if continued else inputs[:-1]
    before = inputs[5] if continued else None
    got = delta_rule(*inputs[:5], before, resets, chunk)
    want = by_hand(*inputs[:5], before, resets)
    torch.testing.assert_close(got, want)
    up = [torch.randn_like(t) for t in want]
    torch.testing.assert_close(*(torch.autograd.grad(y, inputs, up, materialize_grads=True) for y in (got, want)))


@pytest.mark.parametrize("cuts", [[6, 1, 12], [1] * T], ids=["chunks", "steps"])
def test_pieces_give_the_whole(cuts):
    *inputs, start, before = leaves()
    want, reads = delta_rule(*inputs, start, before, RESETS), []
    for now in torch.arange(T).split(cuts):
        y, before = delta_rule(*(i[:, now] for i in inputs), start, before, RESETS[:, now], 4)
        reads.append(y)
    torch.testing.assert_close((torch.cat(reads, 1), before), want)


def test_the_same_key_again_and_again_stays_exact_in_float32():
    """The worst case for a chunk: all keys alike, every write whole. What is read is the last value."""
    q = k = torch.nn.functional.normalize(torch.ones(1, 200, 1, 8), dim=-1)
    v = torch.randn(1, 200, 1, 8, generator=torch.Generator().manual_seed(0))
    y, _ = delta_rule(q, k, v, torch.ones(1, 200, 1), torch.zeros(1, 8, 8))
    torch.testing.assert_close(y, v, atol=1e-5, rtol=1e-5)

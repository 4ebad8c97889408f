"""The neural memory against Titans' recurrence, token by token in float64, where autograd takes the gradient of the
surprise; gradients of every parameter included."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from eulerstack.modeling.context import Context
from eulerstack.modeling.initial import Init, rules_of
from eulerstack.modeling.memory_neural_memory import MINI_BATCH, Memory

B, T, D, H, P = 2, 39, 10, 7, 4
KEEP = torch.ones(B, T, dtype=torch.bool)
KEEP[0, :4] = KEEP[1, 9:11] = KEEP[1, 38] = False
STARTS = torch.zeros(B, T, dtype=torch.bool)
STARTS[0, 25] = STARTS[1, 12] = STARTS[1, 13] = True


def memory(hidden=H, **changes) -> Memory:
    torch.manual_seed(0)
    options = {"update_at_inference": True, "inner_lr": 0.3, "persistence": "session"} | changes
    made = Memory(SimpleNamespace(hidden_size=D, head_dim=P), 0, hidden=hidden, **options).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.5)
    return made


def tokens() -> torch.Tensor:
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()


def row_by_hand(m: Memory, row, keep, starts):
    """One sequence. Titans, equations 8, 11 to 15, gradients at the weights before each mini-batch (section 3.2)."""
    outputs, fresh = [], True
    for t, x in enumerate(row):
        if fresh or starts[t]:
            weights, momentum, seen, fresh = [m.up, m.down], [0.0, 0.0], 0, False
        if not keep[t]:
            outputs.append(torch.zeros_like(x))
            continue
        if seen % MINI_BATCH == 0:
            anchor = list(weights)
        q, k, v = (getattr(m, f"{name}_proj").weight @ x for name in "qkv")
        q, k = q / q.norm(), k / k.norm()
        forget, inertia, rate = m.gates_proj.weight @ x + m.gates_proj.bias
        forget, inertia, rate = (forget - 4.6).sigmoid(), (inertia + 2.2).sigmoid(), m.inner_lr * rate.sigmoid()
        surprise = (anchor[1] @ F.silu(anchor[0] @ k) - v).square().sum()
        gradients = torch.autograd.grad(surprise, anchor, create_graph=True)
        h = anchor[0] @ k
        rows = [torch.autograd.grad(m, h, create_graph=True)[0] for m in anchor[1] @ F.silu(h)]
        curvature = 2 * (F.silu(h).square().sum() + torch.stack(rows).square().sum())
        rate = rate * (1 - inertia) / (1 - inertia + MINI_BATCH * rate * curvature)
        momentum = [inertia * s - rate * g for s, g in zip(momentum, gradients, strict=True)]
        weights = [(1 - forget) * w + s for w, s in zip(weights, momentum, strict=True)]
        seen += 1
        outputs.append(m.o_proj.weight @ (weights[1] @ F.silu(weights[0] @ q)))
    return torch.stack(outputs)


@pytest.mark.parametrize("inner_lr", [1e-3, 0.3, 30.0])
@pytest.mark.parametrize(
    ("keep", "starts"),
    [(None, None), (KEEP, STARTS), (None, STARTS), (KEEP, None)],
    ids=["plain", "both", "packed", "padded"],
)
def test_reads_and_gradients(keep, starts, inner_lr, rows_of):
    m, x, rows = memory(inner_lr=inner_lr), tokens(), rows_of(keep, starts, (B, T))
    rows.same(m, x, rows.by_hand(row_by_hand, m, x))


def test_gradients_through_the_state(rows_of):
    """Two calls, the second in the middle of a mini-batch, are one sequence to the gradient too."""
    m, x = memory(), tokens()
    first, state = m(x[:, :21], Context(torch.arange(21).expand(B, -1), use_cache=True), None)
    second, _ = m(x[:, 21:], Context(torch.arange(21, T).expand(B, -1)), state)
    got = torch.cat((first, second), 1)
    want = rows_of(shape=(B, T)).by_hand(row_by_hand, m, x)
    torch.testing.assert_close(got, want)
    leaves, up = [x, *m.parameters()], torch.randn_like(got)
    torch.testing.assert_close(*(torch.autograd.grad(y, leaves, up) for y in (got, want)))


def test_reading_alone_is_reading_the_start():
    m, x = memory(update_at_inference=False).eval(), tokens()
    got, _ = m(x, Context(torch.arange(T).expand(B, T)), None)
    q = m.q_proj(x)
    torch.testing.assert_close(got, m.o_proj(F.silu(q / q.norm(dim=-1, keepdim=True) @ m.up.T) @ m.down.T))


def test_extreme_gates_stay_finite():
    """Forget everything, keep everything: the logs of the shares do not overflow."""
    for bias in (-200.0, 200.0):
        m, x = memory().float(), tokens().float().detach()
        torch.nn.init.constant_(m.gates_proj.bias, bias)
        y, _ = m(x, Context(torch.arange(T).expand(B, T)), None)
        y.square().sum().backward()
        assert torch.isfinite(y).all()
        assert all(torch.isfinite(p.grad).all() for p in m.parameters())


def test_the_largest_rate_does_not_diverge():
    """However large inner_lr is, the same pair shown for long is what is answered in the end, or nearly."""
    m = memory(inner_lr=1e6)
    torch.nn.init.constant_(m.gates_proj.weight, 0.0)
    torch.nn.init.constant_(m.gates_proj.bias, 0.0)
    m.q_proj.load_state_dict(m.k_proj.state_dict())
    x = tokens()[:, :1].expand(-1, 1600, -1)
    y, _ = m(x, Context(torch.arange(1600).expand(B, -1)), None)
    want = m.o_proj(m.v_proj(x))
    assert (y - want)[:, -1].norm() < 0.3 * want[:, -1].norm()
    assert y.abs().max() < 10 * want.abs().max()


def test_no_weights_are_formed_for_a_token():
    """Nothing that is saved for the backward pass is larger than the networks before a mini-batch."""
    m, sizes = memory(hidden=64), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        m(tokens(), Context(torch.arange(T).expand(B, T)), None)
    assert max(sizes) <= B * 2 * 64 * MINI_BATCH


def test_starts():
    rules = rules_of(memory(persistence="persistent"), Init("mup", 0.02, 2))
    assert rules["up"].std == pytest.approx(P**-0.5)
    assert rules["down"].std == pytest.approx(H**-0.5)
    assert rules["start_up"].value == rules["start_down"].value == 0.0

"""The associative memory against its equations, token by token in float64, gradients of every parameter too."""

from types import SimpleNamespace

import pytest
import torch

from eulerstack.modeling.context import Context
from eulerstack.modeling.initial import Init, rules_of
from eulerstack.modeling.memory_associative import Memory

B, T, D = 2, 23, 10
KEEP = torch.ones(B, T, dtype=torch.bool)
KEEP[0, :4] = KEEP[1, 9:11] = KEEP[1, 22] = False
STARTS = torch.zeros(B, T, dtype=torch.bool)
STARTS[0, 9] = STARTS[1, 12] = STARTS[1, 13] = True


def memory(hidden=15, head_dim=5, **changes) -> Memory:
    torch.manual_seed(0)
    options = {"update_at_inference": True, "inner_lr": 0.7, "persistence": "session"} | changes
    made = Memory(SimpleNamespace(hidden_size=D, head_dim=head_dim), 0, hidden=hidden, **options).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.5)
    return made


def tokens() -> torch.Tensor:
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()


def head_by_hand(m: Memory, row, h, size, keep, starts):
    """One head of one sequence: what is read after each token."""
    rows, reads = slice(h * size, (h + 1) * size), []
    state = m.weight[h]
    for t, x in enumerate(row):
        if starts[t]:
            state = m.weight[h]
        q, k, v = ((getattr(m, f"{name}_proj").weight @ x)[rows] for name in "qkv")
        q, k = q / q.norm(), k / k.norm()
        rate = m.inner_lr * (m.step_proj.weight[h] @ x + m.step_proj.bias[h]).exp()
        if keep[t]:
            # the implicit step: after it, S' = S - rate (S' k - v) k^T
            state = state + rate / (1 + rate) * torch.outer(v - state @ k, k)
        reads.append(state @ q)
    return torch.stack(reads)


def row_by_hand(m: Memory, row, keep, starts):
    heads, size = m.weight.shape[:2]
    reads = [head_by_hand(m, row, h, size, keep, starts) for h in range(heads)]
    return torch.cat(reads, 1) @ m.o_proj.weight.T


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("inner_lr", [1e-3, 0.7, 30.0])
def test_reads_and_gradients(masked, inner_lr, rows_of):
    m, x = memory(inner_lr=inner_lr), tokens()
    rows = rows_of(*((KEEP, STARTS) if masked else (None, None)), (B, T))
    rows.same(m, x, rows.by_hand(row_by_hand, m, x))


def test_the_step_is_implicit():
    """The S after a write solves S' = S - r (S' k - v) k^T."""
    m, x = memory(), tokens()[:, :1]
    _, state = m(x, Context(torch.zeros(B, 1, dtype=torch.long), use_cache=True), None)
    k = m.k_proj(x).unflatten(-1, (3, 5))[:, 0]
    k, v = k / k.norm(dim=-1, keepdim=True), m.v_proj(x).unflatten(-1, (3, 5))[:, 0]
    after, rate = state["weight"], m.inner_lr * m.step_proj(x)[:, 0].exp()
    error = torch.einsum("bhpn,bhn->bhp", after, k) - v
    torch.testing.assert_close(after, m.weight - rate[..., None, None] * error[..., None] * k[:, :, None])


@pytest.mark.parametrize(
    ("hidden", "head_dim", "heads"), [(15, 5, 3), (16, 5, 2), (13, 5, 1), (4, 5, 1), (2048, 96, 16)]
)
def test_heads_divide_any_size(hidden, head_dim, heads):
    size = hidden // heads
    assert memory(hidden, head_dim).weight.shape == (heads, size, size)


def test_reading_alone_is_reading_the_start():
    m, x = memory(update_at_inference=False).eval(), tokens()
    got, _ = m(x, Context(torch.arange(T).expand(B, T)), None)
    q = m.q_proj(x).unflatten(-1, (3, 5))
    reads = torch.einsum("hpn,bthn->bthp", m.weight, q / q.norm(dim=-1, keepdim=True))
    torch.testing.assert_close(got, m.o_proj(reads.flatten(2)))


def test_starts():
    rules = rules_of(memory(persistence="persistent"), Init("mup", 0.02, 2))
    assert rules["weight"].std == pytest.approx(5**-0.5)
    assert rules["start_weight"].value == 0.0

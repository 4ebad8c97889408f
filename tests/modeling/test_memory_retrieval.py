"""Retrieval against lists: past tokens in a ring, sorted by distance; float64, gradients of every parameter too."""

from types import SimpleNamespace

import pytest
import torch

from eulerstack.modeling import memory_retrieval
from eulerstack.modeling.context import Context
from eulerstack.modeling.memory_retrieval import Memory
from eulerstack.modeling.op_neighbours import NEIGHBOURS, recall

B, T, D, C = 2, 37, 10, 4
KEEP = torch.ones(B, T, dtype=torch.bool)
KEEP[0, :4] = KEEP[1, 9:11] = KEEP[1, 36] = False
STARTS = torch.zeros(B, T, dtype=torch.bool)
STARTS[0, 20] = STARTS[1, 12] = STARTS[1, 13] = True


def memory(hidden=13, **changes) -> Memory:
    torch.manual_seed(0)
    options = {"update_at_inference": True, "inner_lr": 0.001, "persistence": "session"} | changes
    made = Memory(SimpleNamespace(hidden_size=D, head_dim=C), 0, hidden=hidden, **options).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.5)
    torch.nn.init.constant_(made.scale, 3.0)
    return made


def tokens() -> torch.Tensor:
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()


def row_by_hand(m: Memory, row, keep, starts):
    ring, outputs = [], []
    for t, x in enumerate(row):
        if starts[t]:
            ring = []
        if not keep[t]:
            outputs.append(torch.zeros_like(x))
            continue
        q, k, v = (getattr(m, f"{name}_proj").weight @ x for name in "qkv")
        q, k = q / q.norm(), k / k.norm()
        nearest = sorted(ring, key=lambda pair: (q - pair[0]).norm().item())[:NEIGHBOURS]
        read = torch.zeros_like(x)
        if nearest:
            weights = torch.stack([m.scale[0] * (q @ key) for key, _ in nearest]).softmax(0)
            read = sum(w * value for w, (_, value) in zip(weights, nearest, strict=True))
        gate = (m.gate_proj.weight[0] @ x + m.gate_proj.bias[0]).sigmoid()
        outputs.append(m.o_proj.weight @ (gate * read))
        ring = [*ring, (k, v)][-m.hidden :]
    return torch.stack(outputs)


@pytest.mark.parametrize("hidden", [1, 5, 13, 100])
@pytest.mark.parametrize(
    ("keep", "starts"),
    [(None, None), (KEEP, STARTS), (None, STARTS), (KEEP, None)],
    ids=["plain", "both", "packed", "padded"],
)
def test_reads_and_gradients(keep, starts, hidden, rows_of):
    m, x, rows = memory(hidden), tokens(), rows_of(keep, starts, (B, T))
    rows.same(m, x, rows.by_hand(row_by_hand, m, x))


@pytest.mark.parametrize("starts", [None, STARTS], ids=["plain", "packed"])
def test_queries_some_at_a_time(monkeypatch, starts):
    context = Context(torch.arange(T).expand(B, T), None, starts)
    whole, _ = memory()(tokens(), context, None)
    monkeypatch.setattr(memory_retrieval, "QUERIES", 7)
    torch.testing.assert_close(memory()(tokens(), context, None)[0], whole)


def test_what_is_held_is_bounded_and_the_newest():
    m, x = memory(), tokens()
    _, state = m(x, Context(torch.arange(T).expand(B, T), use_cache=True), None)
    torch.testing.assert_close(state["keys"], m.k_proj(x)[:, -13:])
    torch.testing.assert_close(state["values"], m.v_proj(x)[:, -13:])
    assert state["real"].all()


def test_equal_neighbours_are_all_read():
    """One key everywhere: every value weighs the same, in whatever order they came."""
    m, x = memory(hidden=100), tokens()
    torch.nn.init.zeros_(m.k_proj.weight)
    got, _ = m(x, Context(torch.arange(T).expand(B, T)), None)
    mean = m.v_proj(x)[:, :-1].mean(1)
    torch.testing.assert_close(got[:, -1], m.o_proj(m.gate_proj(x[:, -1]).sigmoid() * mean))


def test_a_document_starts_with_what_was_remembered():
    """A fresh sequence after `remember` is answered as the continuation of the remembered one."""
    m, x = memory(persistence="persistent"), tokens()
    plain = memory()
    _, state = m(x[:, :9], Context(torch.arange(9).expand(B, -1), use_cache=True), None)
    assert not m(x[:, :1], Context(torch.zeros(B, 1, dtype=torch.long)), None)[0].any()
    m.remember(state, row=1)
    one = x[1:2]
    starts = torch.zeros(1, 28, dtype=torch.bool)
    starts[0, 15] = True
    got, _ = m(one[:, 9:], Context(torch.arange(28)[None], None, starts), None)
    for begin, end in ((9, 24), (24, 37)):
        sequence = torch.cat((one[:, :9], one[:, begin:end]), 1)
        want, _ = plain(sequence, Context(torch.arange(sequence.shape[1])[None]), None)
        torch.testing.assert_close(got[:, begin - 9 : end - 9], want[:, 9:], atol=1e-5, rtol=1e-4)


def test_a_token_that_stands_twice_ties_with_itself_however_it_was_rounded():
    """Seven near keys and two of one direction: both are neighbours, though their cosines differ in the last digit."""
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        q, near, key = (torch.randn(n, 5, generator=g) for n in (1, NEIGHBOURS - 1, 1))
        near = q + 0.01 * near
        keys = torch.cat((near, key, (1.0 + torch.rand(1, generator=g)) * key))[None]
        entries = {"keys": keys, "values": torch.eye(NEIGHBOURS + 1)[None]}
        weights = recall(q[None], entries, torch.ones(1, 1, NEIGHBOURS + 1, dtype=torch.bool), torch.ones(1))[0, 0]
        torch.testing.assert_close(weights[-1], weights[-2])


@pytest.mark.parametrize("starts", [None, STARTS], ids=["whole", "packed"])
def test_queries_are_compared_with_no_more_entries_than_they_can_see(monkeypatch, starts):
    m, x, seen = memory(hidden=5), tokens(), []
    context = Context(torch.arange(T).expand(B, T), starts=starts)
    want, _ = m(x, context, None)

    def counted(q, entries, visible, scale):
        seen.append(visible.shape[-1])
        return recall(q, entries, visible, scale)

    monkeypatch.setattr(memory_retrieval, "QUERIES", 4)
    monkeypatch.setattr(memory_retrieval, "recall", counted)
    torch.testing.assert_close(m(x, context, None)[0], want)
    assert max(seen) == 5 + 4

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from eulerstack.modeling.op_balance import RouterRecord, balance_loss, count, sequence_loss, z_loss


def records(n, *, shape=(3, 7), experts=5, top_k=2, keep=None, documents=None, dtype=torch.float32):
    torch.manual_seed(0)
    logits = [torch.randn(*shape, experts, dtype=dtype, requires_grad=True) for _ in range(n)]
    return [RouterRecord(x, x.detach().topk(top_k).indices, keep, documents) for x in logits]


def some(shape=(3, 7), share=0.6):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3)) < share


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_balance_loss_is_transformers_formula(masked, top_k):
    keep = some() if masked else None
    made = records(4, top_k=top_k, keep=keep)
    theirs = tuple(r.logits.flatten(0, 1) for r in made)
    want = load_balancing_loss_func(theirs, 5, top_k, keep if keep is None else keep.long())
    torch.testing.assert_close(balance_loss(made, "softmax"), want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "sqrt_softplus"])
def test_balance_loss_of_an_even_load_is_top_k(kind):
    logits = torch.eye(6).expand(2, 6, 6) * 3
    selected = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6], -1).expand(2, 6, 2)
    assert balance_loss([RouterRecord(logits, selected)], kind).item() == pytest.approx(2.0)


@pytest.mark.parametrize("loss", ["balance", "sequence", "z"])
def test_padding_changes_no_loss_whatever_it_holds(loss):
    of = {
        "balance": lambda record: balance_loss([record], "sigmoid"),
        "sequence": lambda record: sequence_loss(record, "sigmoid"),
        "z": lambda record: z_loss([record]),
    }[loss]
    (made,), (clean,), keep = records(1), records(1, keep=some()), some()
    noise = made.logits.masked_fill(~keep[..., None], float("inf"))
    noisy = RouterRecord(noise, noise.topk(2).indices, keep)
    assert torch.equal(of(clean), of(noisy))
    assert not torch.equal(of(clean), of(made))


def test_losses_of_nothing_but_padding_are_zero():
    made = records(2, keep=torch.zeros(3, 7, dtype=torch.bool))
    assert balance_loss(made, "softmax") == 0
    assert sequence_loss(made[0], "softmax") == 0
    assert z_loss(made) == 0


def test_z_loss_is_the_mean_square_of_the_logsumexp():
    keep = some()
    made = records(2, keep=keep)
    squares = [math.log(sum(map(math.exp, x))) ** 2 for r in made for x in r.logits[keep].tolist()]
    assert z_loss(made).item() == pytest.approx(sum(squares) / len(squares), rel=1e-5)


def sequence_by_hand(record, kind):
    """DeepSeek-V3, equations 17 to 20, for one document after the other, token by token, expert by expert."""
    experts, top_k, rows = record.logits.shape[-1], record.selected.shape[-1], {}
    for b, row in enumerate(record.logits):
        for t, logits in enumerate(row):
            if record.keep is None or record.keep[b, t]:
                number = 0 if record.documents is None else record.documents[b, t].item()
                rows.setdefault((b, number), []).append(logits)
    total, weight = 0, sum(map(len, rows.values()))
    for tokens in rows.values():
        s = [{"softmax": h.exp() / h.exp().sum(), "sigmoid": 1 / (1 + (-h).exp())}[kind] for h in tokens]
        for e in range(experts):
            f = sum(sum(x[e] < x).item() < top_k for x in s) * experts / (top_k * len(s))
            p = sum(x[e] / sum(x) for x in s) / len(s)
            total = total + len(s) / weight * f * p
    return total


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("top_k", [1, 3])
def test_sequence_loss_is_its_formula(kind, padded, packed, top_k):
    documents = torch.tensor([[0, 0, 1, 1, 1, 1, 2], [0] * 7, [0, 1, 2, 3, 3, 3, 3]]) if packed else None
    keep = some() if padded else None
    (made,) = records(1, top_k=top_k, keep=keep, documents=documents, dtype=torch.float64)
    got, want = sequence_loss(made, kind), sequence_by_hand(made, kind)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    a, b = (torch.autograd.grad(x, made.logits, retain_graph=True)[0] for x in (got, want))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-15)
    assert a.abs().max() > 0


def test_sequence_loss_of_even_loads_is_one_and_of_one_expert_is_all_of_them():
    even = RouterRecord(torch.eye(6).expand(2, 6, 6), torch.zeros(2, 6, 1))
    assert sequence_loss(even, "softmax").item() == pytest.approx(1.0)
    skewed = torch.zeros(2, 6, 6)
    skewed[..., 4] = 40.0
    assert sequence_loss(RouterRecord(skewed, torch.zeros(2, 6, 1)), "softmax").item() == pytest.approx(6.0)


def test_sequence_loss_of_packed_documents_is_that_of_rows():
    """Each of them weighs as much as it has tokens."""
    logits = torch.randn(1, 9, 5, dtype=torch.float64)
    selected, documents = logits.topk(2).indices, torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    parts = [sequence_loss(RouterRecord(logits[:, x], selected[:, x]), "sigmoid") for x in (slice(4), slice(4, 9))]
    packed = sequence_loss(RouterRecord(logits, selected, None, documents), "sigmoid")
    assert packed.item() == pytest.approx((4 * parts[0] + 5 * parts[1]).item() / 9)
    assert packed.item() != pytest.approx(sequence_loss(RouterRecord(logits, selected), "sigmoid").item())


def test_sequence_loss_counts_the_largest_affinities_whatever_was_chosen():
    (made,) = records(1)
    other = RouterRecord(made.logits, (made.selected + 1) % 5)
    assert torch.equal(sequence_loss(made, "sigmoid"), sequence_loss(other, "sigmoid"))
    assert not torch.equal(balance_loss([made], "sigmoid"), balance_loss([other], "sigmoid"))


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_count_counts_real_assignments(data):
    experts, b, t, k = (data.draw(st.integers(1, n)) for n in (7, 3, 5, 3))
    rows = data.draw(st.lists(st.integers(0, experts - 1), min_size=b * t * k, max_size=b * t * k))
    kept = data.draw(st.lists(st.booleans(), min_size=b * t, max_size=b * t))
    got = count(torch.tensor(rows).view(b, t, k), experts, torch.tensor(kept).view(b, t))
    real = [e for i, e in enumerate(rows) if kept[i // k]]
    assert got.tolist() == [real.count(e) for e in range(experts)]

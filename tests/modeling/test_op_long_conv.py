"""The long convolution against a double loop over tokens; float64, gradients included."""

import pytest
import torch

from eulerstack.modeling.context import Context
from eulerstack.modeling.op_long_conv import _Causal, _fft_size, long_conv

B, S, C = 3, 23, 5
KEEP = torch.ones(B, S, dtype=torch.bool)
KEEP[0, :4] = KEEP[1, 19:] = KEEP[2, 3:6] = KEEP[2, 10] = False  # left, right, in the middle
DOCUMENTS = torch.zeros(B, S, dtype=torch.long)
DOCUMENTS[0, 9:] = 1
DOCUMENTS[1] = torch.tensor([0, 1, 2, *[3] * 5, *[4] * 4, *[6] * 11])
every_layout = pytest.mark.parametrize(
    ("keep", "documents"),
    [(None, None), (KEEP, None), (None, DOCUMENTS), (KEEP, DOCUMENTS)],
    ids=["plain", "padded", "packed", "both"],
)


def context(tokens: int, keep, documents) -> Context:
    """A call of the last `tokens` of S."""
    positions = torch.arange(S).expand(B, S)
    return Context(
        positions[:, S - tokens :],
        None if keep is None else keep[:, S - tokens :],
        key_positions=positions,
        key_keep=keep,
        key_documents=documents,
        past=S - tokens,
    )


def by_hand(u, h, keep, documents, tokens: int):
    """The sum over the past, one product at a time; the distance counts real tokens between two of one document."""
    rows = []
    for b in range(B):
        real = [True] * S if keep is None else keep[b].tolist()
        document = [0] * S if documents is None else documents[b].tolist()
        for t in range(S - tokens, S):
            y, distance = torch.zeros(C, dtype=u.dtype), 0
            for s in range(t, -1, -1):
                if real[t] and real[s] and document[s] == document[t]:
                    y = y + h[distance] * u[b, s]
                    distance += 1
            rows.append(y)
    return torch.stack(rows).view(B, tokens, C)


@every_layout
@pytest.mark.parametrize("tokens", [S, 9, 2, 1])
def test_outputs_and_gradients_are_those_of_the_sum(tokens, keep, documents):
    torch.manual_seed(0)
    leaves = u, h = [torch.randn(*shape, C, dtype=torch.float64, requires_grad=True) for shape in ((B, S), (S,))]
    got, want = long_conv(u, h, context(tokens, keep, documents)), by_hand(u, h, keep, documents, tokens)
    real = torch.ones(B, tokens, 1) if keep is None else keep[:, S - tokens :, None]
    torch.testing.assert_close(got * real, want * real)
    up = torch.randn_like(want) * real
    torch.testing.assert_close(*(torch.autograd.grad(y, leaves, up) for y in (got, want)))


def test_borders_are_read_from_the_call_where_there_is_no_history():
    torch.manual_seed(0)
    u, h = torch.randn(B, S, C, dtype=torch.float64), torch.randn(S, C, dtype=torch.float64)
    starts = torch.zeros(B, S, dtype=torch.bool)
    starts[:, 1:] = DOCUMENTS[:, 1:] != DOCUMENTS[:, :-1]
    got = long_conv(u, h, Context(torch.arange(S).expand(B, S), starts=starts))
    torch.testing.assert_close(got, by_hand(u, h, None, DOCUMENTS, S))


@pytest.mark.parametrize("tokens", [1, 4, 7])
def test_the_gradient_is_that_of_finite_differences(tokens):
    torch.manual_seed(0)
    u, h = (torch.randn(*shape, 2, dtype=torch.float64, requires_grad=True) for shape in ((2, 7), (7,)))
    assert torch.autograd.gradcheck(lambda u, h: _Causal.apply(u, h, tokens), (u, h))


def test_every_length_of_a_document_finds_its_row():
    """Documents of 1, 2, ..., 20 tokens in one row: each is convolved as if alone."""
    torch.manual_seed(0)
    lengths = list(range(1, 21))
    u, h = torch.randn(1, sum(lengths), C, dtype=torch.float64), torch.randn(sum(lengths), C, dtype=torch.float64)
    document = torch.arange(20).repeat_interleave(torch.tensor(lengths))[None]
    positions = torch.arange(sum(lengths))[None]
    got = long_conv(u, h, Context(positions, key_positions=positions, key_documents=document))
    alone = [
        long_conv(part, h[: part.shape[1]], Context(positions[:, : part.shape[1]])) for part in u.split(lengths, 1)
    ]
    torch.testing.assert_close(got, torch.cat(alone, 1))


def test_float32_is_exact_to_its_last_digits():
    torch.manual_seed(0)
    u, h = torch.randn(2, 1021, C), torch.randn(1021, C)
    positions = torch.arange(1021).expand(2, 1021)
    got = long_conv(u, h, Context(positions))
    want = long_conv(u.double(), h.double(), Context(positions))
    assert (got - want).abs().max() < 1e-6 * want.std() * 10


def test_autocast_does_not_reach_inside():
    torch.manual_seed(0)
    u, h = torch.randn(B, S, C), torch.randn(S, C)
    for tokens in (S, 1):
        want = long_conv(u, h, context(tokens, None, None))
        with torch.autocast("cpu", torch.bfloat16):
            got = long_conv(u, h, context(tokens, None, None))
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_sizes_of_transforms_are_even_and_close():
    sizes = [_fft_size(n) for n in range(1, 3000)]
    assert all(n <= size <= max(2, 4 * n // 3 + 2) and size % 2 == 0 for n, size in enumerate(sizes, 1))


def test_second_gradients_are_those_of_finite_differences():
    u, h = torch.randn(2, 7, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    leaves = u.requires_grad_(), h.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda u, h: _Causal.apply(u, h, 4), leaves)

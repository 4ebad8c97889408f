"""Rows of tokens with padding and borders of documents, and a module beside its definition written out for one row.

B batch, T tokens, D model width.
"""

from collections.abc import Callable

import torch

from eulerstack.modeling.context import Context

B, T = 3, 23
KEEP = torch.ones(B, T, dtype=torch.bool)
KEEP[0, :4] = KEEP[1, 19:] = KEEP[2, 3:6] = KEEP[2, 10] = False  # left, right, in the middle
STARTS = torch.zeros(B, T, dtype=torch.bool)
STARTS[0, 9] = STARTS[1, 1] = STARTS[1, 2] = STARTS[2, 17] = True


class Rows:
    """`keep` and `starts` [B, T] say what is real and where documents begin; None: everything, and nowhere else."""

    def __init__(self, keep: torch.Tensor | None = None, starts: torch.Tensor | None = None, shape=(B, T)):
        self.keep, self.starts, self.shape = keep, starts, shape
        self.real = torch.ones(shape, dtype=torch.bool) if keep is None else keep
        self.borders = torch.zeros(shape, dtype=torch.bool) if starts is None else starts
        self.places = torch.zeros(shape, dtype=torch.long)  # in its document, counted by hand
        for b in range(shape[0]):
            place = 0
            for t in range(shape[1]):
                place = 0 if self.borders[b, t] else place
                self.places[b, t] = place
                place += int(self.real[b, t])

    def context(self, now: slice | None = None, use_cache: bool = False) -> Context:
        """The call of the tokens `now`, after all before them."""
        now = now or slice(0, self.shape[1])
        documents = None if self.starts is None else self.starts.cumsum(1)
        own = [None if m is None else m[:, now] for m in (self.places, self.keep, self.starts)]
        seen = [None if m is None else m[:, : now.stop] for m in (self.places, self.keep, documents)]
        return Context(*own, *seen, past=now.start, use_cache=use_cache)

    def tokens(self, d: int, dtype=torch.float64) -> torch.Tensor:
        """[B, T, D], a leaf that asks for its gradient."""
        seed = torch.Generator().manual_seed(1)
        return torch.randn(*self.shape, d, dtype=dtype, generator=seed, requires_grad=True)

    def by_hand(self, one: Callable, m, x: torch.Tensor, *more) -> torch.Tensor:
        """`one(m, row [T, D], real [T], borders [T], *more)` of every row."""
        rows = zip(x, self.real, self.borders, strict=True)
        return torch.stack([one(m, *row, *more) for row in rows])

    def same(self, m, x: torch.Tensor, want: torch.Tensor) -> None:
        """The outputs of real tokens, and the gradients of the input and of all parameters, are those of `want`."""
        got = m(x, self.context(), None)[0][self.real]
        torch.testing.assert_close(got, want[self.real])
        leaves, up = [x, *m.parameters()], torch.randn_like(got)
        torch.testing.assert_close(*(torch.autograd.grad(y, leaves, up) for y in (got, want[self.real])))

    def same_in_pieces(self, m, x: torch.Tensor, cuts: list[int], held: Callable[[dict], dict] = dict) -> None:
        """Calls of `cuts` tokens give what one call gives and end in the same state, of which `held` is looked at; no
        call changes the state that it was given."""
        x = x.detach()
        want, last = m(x, self.context(use_cache=True), None)
        outputs, state, t = [], None, 0
        for n in cuts:
            now = slice(t, t + n)
            old = None if state is None else {name: tensor.clone() for name, tensor in state.items()}
            y, new = m(x[:, now], self.context(now, use_cache=True), state)
            assert old is None or all(torch.equal(old[name], state[name]) for name in old)
            outputs.append(y)
            state, t = new, t + n
        torch.testing.assert_close(torch.cat(outputs, 1)[self.real], want[self.real])
        assert state.keys() == last.keys()
        torch.testing.assert_close(held(state), held(last))


VARIANTS = {
    "plain": Rows(),
    "padded": Rows(KEEP),
    "packed": Rows(None, STARTS),
    "padded and packed": Rows(KEEP, STARTS),
}

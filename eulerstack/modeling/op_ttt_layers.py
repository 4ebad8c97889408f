"""A layer of an inner model whose weights move from token to token by gradient descent or AdamW (op_ttt.py).

A layer I -> O counts its bias as the weight of a last input of 1. Z tokens of a mini-batch, G heads of all rows.
"""

from dataclasses import dataclass

import torch

BETAS, DECAY, FLOOR = (0.9, 0.999), 0.01, 1e-6  # b1 and b2, d, e: under the root, it bounds the gradients through it

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Rule:
    """How the inner model learns: `optimizer` sgd | adamw, its `rate`, `passes` over a mini-batch, the norm's `eps`."""

    optimizer: str
    rate: float
    passes: int
    eps: float

    @property
    def stretch(self) -> int:
        """Mini-batches of which the backward pass computes everything again but the memory before them."""
        return 8 if self.optimizer == "sgd" else 1

    def fresh(self, start: torch.Tensor) -> Tensors:
        """What a layer of weights `start` `[G, I, O]` holds before it has learned: W, and of adamw m, v, n."""
        if self.optimizer == "sgd":
            return (start,)
        return start, torch.zeros_like(start), torch.zeros_like(start), start.new_zeros(len(start), 1, 1)

    def nothing(self, weight: torch.Tensor) -> torch.Tensor:
        """G^j before a mini-batch has tokens, `[G, k, I, O]`."""
        return weight.new_zeros(len(weight), self.passes, *weight.shape[1:])

    def layer(self, held: Tensors, pending: torch.Tensor | None) -> "Layer":
        return (_Sgd if self.optimizer == "sgd" else _AdamW)(self.rate, held, pending)


class Layer:
    """A layer of g inside a mini-batch: `apply`, `back` and `learn` go by each token's own weights.

    `pending` `[G, k, I, O]`, or None for zeros: what earlier calls added to G^j in the same mini-batch.
    """

    def __init__(self, rate: float, held: Tensors, pending: torch.Tensor | None):
        self.rate, self.held, self.pending = rate, held, pending
        self.learned: list[Tensors] = []  # inputs `[G, Z, I]` and gated errors `[G, Z, O]` of each pass

    def sums(self) -> torch.Tensor:
        """`[G, k, I, O]`: G^j with all tokens of the mini-batch so far."""
        sums = torch.stack([x.mT @ e for x, e in self.learned], 1)
        return sums if self.pending is None else self.pending + sums


class _Sgd(Layer):
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """`[G, Z, I]` -> `[G, Z, O]`."""
        y = x @ self.held[0]
        for seen, errors in self.learned:
            y = torch.baddbmm(y, (x @ seen.mT).tril(), errors, alpha=-self.rate)
        return y

    def back(self, e: torch.Tensor) -> torch.Tensor:
        """Errors `[G, Z, O]` of the outputs -> those `[G, Z, I - 1]` of the inputs, without the constant one."""
        d = e @ self.held[0][:, :-1].mT
        for seen, errors in self.learned:
            d = torch.baddbmm(d, (e @ errors.mT).tril(), seen[..., :-1], alpha=-self.rate)
        return d

    def learn(self, x: torch.Tensor, e: torch.Tensor) -> None:
        if self.pending is not None:
            self.held = (self.held[0] - self.rate * self.pending[:, len(self.learned)],)
        self.learned.append((x, e))

    def after(self) -> Tensors:
        """What is held after the last token."""
        weight = self.held[0]
        for x, e in self.learned:
            weight = torch.baddbmm(weight, x.mT, e, alpha=-self.rate)
        return (weight,)


class _AdamW(Layer):
    def __init__(self, rate: float, held: Tensors, pending: torch.Tensor | None):
        super().__init__(rate, tuple(t[:, None] for t in held), pending)  # [G, 1 or Z, I, O] from here on

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.held[0]
        return (x[:, :, None] @ weight)[:, :, 0] if self.learned else x @ weight[:, 0]

    def back(self, e: torch.Tensor) -> torch.Tensor:
        weight = self.held[0][:, :, :-1].mT
        return (e[:, :, None] @ weight)[:, :, 0] if self.learned else e @ weight[:, 0]

    def learn(self, x: torch.Tensor, e: torch.Tensor) -> None:
        weight, m, v, n = self.held
        so_far = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype, device=x.device).tril()
        gradient = (x[:, None] * so_far[..., None]).mT @ e[:, None]  # running sums of outer products, in one product
        if self.pending is not None:
            gradient = gradient + self.pending[:, len(self.learned), None]
        (b1, b2), n = BETAS, n + 1
        m, v = torch.lerp(m, gradient, 1 - b1), torch.lerp(v, gradient.square(), 1 - b2)
        small = (1 - b1**n).square()  # the correction of m, moved into the root
        root = torch.rsqrt(torch.addcmul(small * FLOOR, v, small / (1 - b2**n)))
        self.held = (torch.addcmul((1 - self.rate * DECAY) * weight, m, root, value=-self.rate), m, v, n)
        self.learned.append((x, e))

    def after(self) -> Tensors:
        return tuple(t[:, -1].clone() for t in self.held)  # a view would keep those of all tokens alive

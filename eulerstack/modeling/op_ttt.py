"""Test-time training (Sun et al. 2024, Learning to (Learn at Test Time), sections 2.1 to 2.7): the state is a model.

The inner model f of a head, its loss at a token, and what W learns in a mini-batch begun at W^0, in passes j = 1 ... k
(the paper's equations 1 to 6 for k = 1), for each token t from the tokens s <= t of the mini-batch:

    f(x; W) = x + LN(g(x; W))        g(x) = x W_1 + b_1    or    gelu(x W_1 + b_1) W_2 + b_2
    l_s(W) = |f(k_s; W) - v_s|^2                  y_t = f(q_t; W^k_t)
    G^j_t = sum over s <= t of gate_s grad l_s(W^{j-1}_s)                            W^0_t = W^0
    sgd:    W^j_t = W^{j-1}_t - rate G^j_t
    adamw:  m^j_t = b1 m^{j-1}_t + (1 - b1) G^j_t        v^j_t = b2 v^{j-1}_t + (1 - b2) (G^j_t)^2
            W^j_t = (1 - rate d) W^{j-1}_t - rate (m^j_t / (1 - b1^n)) / sqrt(v^j_t / (1 - b2^n) + e)

With Z tokens in it, the mini-batch leaves W^k_Z (and m, v) as the next one's W^0. n counts the steps so far, k of a
mini-batch. So a token takes each gradient at the weights that its own document up to it has made, and with mini-batches
of one token the passes are plain steps. `sgd` never builds W_t (the dual form): W_t is W^0 and a sum of outer products
x_s^T e_s, inputs and errors of a layer, so that applying it is a masked attention. `adamw` is not linear in G and does.

N mini-batches of Z slots, G heads of all rows, P features of a head, I -> O a layer of g, whose last input is a 1 so
that its bias is the last row of its weight.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .op_ttt_layers import Layer, Rule, Tensors


def _with_one(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 1), value=1.0)


def _slope(h: torch.Tensor) -> torch.Tensor:
    """The derivative of gelu."""
    return 0.5 * (1.0 + torch.erf(h / math.sqrt(2.0))) + h * torch.exp(-0.5 * h.square()) / math.sqrt(2.0 * math.pi)


def _error(z: torch.Tensor, target: torch.Tensor, norm: Tensors, eps: float) -> torch.Tensor:
    """The gradient of |LN(z) - target|^2 with respect to z `[G, Z, P]`."""
    centred = z - z.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    unit = centred * scale
    d = 2.0 * norm[0] * (torch.addcmul(norm[1] - target, unit, norm[0]))
    d = d - d.mean(-1, keepdim=True)
    return scale * torch.addcmul(d, unit, (d * unit).mean(-1, keepdim=True), value=-1.0)


def _gradient(layers: list[Layer], k: torch.Tensor, target: torch.Tensor, norm: Tensors, eps: float) -> list[Tensors]:
    """The inputs and errors of each layer, whose outer products are the gradients of the loss of each token."""
    inputs, slopes = [_with_one(k)], []
    for layer in layers[:-1]:
        h = layer.apply(inputs[-1])
        inputs.append(_with_one(F.gelu(h)))
        slopes.append(_slope(h))
    errors = [_error(layers[-1].apply(inputs[-1]), target, norm, eps)]
    for layer, slope in zip(reversed(layers[1:]), reversed(slopes), strict=True):
        errors.append(layer.back(errors[-1]) * slope)
    return list(zip(inputs, reversed(errors), strict=True))


def _read(layers: list[Layer], q: torch.Tensor, norm: Tensors, eps: float) -> torch.Tensor:
    z = layers[0].apply(_with_one(q))
    for layer in layers[1:]:
        z = layer.apply(_with_one(F.gelu(z)))
    return q + torch.addcmul(norm[1], F.layer_norm(z, z.shape[-1:], eps=eps), norm[0])


@dataclass(frozen=True)
class Memory:
    """What the layers held when the open mini-batch began, and the sums G^j of its tokens so far.

    `held` of each layer as Rule.fresh, `pending` of each layer `[G, k, I, O]`; between mini-batches None for zeros.
    """

    held: tuple[Tensors, ...]
    pending: tuple[torch.Tensor | None, ...]

    def where(self, condition: torch.Tensor, other: "Memory") -> "Memory":
        """`self` in the heads where `condition` `[G, 1, 1]` holds, `other` elsewhere; neither has a None."""
        held = tuple(
            tuple(torch.where(condition, a, b) for a, b in zip(*both, strict=True))
            for both in zip(self.held, other.held, strict=True)
        )
        pending = (torch.where(condition[..., None], a, b) for a, b in zip(self.pending, other.pending, strict=True))
        return Memory(held, tuple(pending))


@dataclass(frozen=True)
class Tokens:
    """Mini-batches of tokens, `[N, G, Z, *]`: k, v - k, q, and the gate, 0 in slots that hold none."""

    k: torch.Tensor
    target: torch.Tensor
    q: torch.Tensor
    gate: torch.Tensor


def fresh_memory(rule: Rule, start: Tensors) -> Memory:
    """The memory of a document that has not begun, from the first weights `[G, I, O]` of the layers."""
    return Memory(tuple(rule.fresh(w) for w in start), tuple(rule.nothing(w) for w in start))


def learn(rule: Rule, norm: Tensors, tokens: Tokens, memory: Memory, start: Memory, fresh, complete):
    """Outputs `[N, G, Z, P]` and the memory after them.

    `norm` the scale and the offset of LN, `[G, 1, P]`; `fresh` `[N, G, 1, 1]` bool: `start` takes the place of the
    memory before that mini-batch, None: nowhere; `complete` `[N, G, 1, 1]` bool: its last token is there, or a bool for
    each mini-batch.
    """
    outputs, count = [], len(tokens.k)
    for at in range(0, count, rule.stretch):
        now = slice(at, at + rule.stretch)
        resets = None if fresh is None else fresh[now]
        args = rule, norm, Tokens(*(t[now] for t in vars(tokens).values())), memory, start, resets, complete[now]
        if torch.is_grad_enabled() and count > rule.stretch:
            y, memory = checkpoint(_stretch, *args, use_reentrant=False, preserve_rng_state=False)
        else:
            y, memory = _stretch(*args)
        outputs += y
    if None in memory.pending:
        memory = Memory(memory.held, tuple(rule.nothing(weight) for weight, *_ in memory.held))
    return torch.stack(outputs), memory


def _stretch(rule: Rule, norm: Tensors, tokens: Tokens, memory: Memory, start: Memory, fresh, complete):
    """A few mini-batches one after the other: a list of outputs `[G, Z, P]`, and the memory after them."""
    outputs = []
    for n in range(len(tokens.k)):
        if fresh is not None:
            memory = start.where(fresh[n], memory)
        y, memory = _mini_batch(rule, norm, Tokens(*(t[n] for t in vars(tokens).values())), memory, complete[n])
        outputs.append(y)
    return outputs, memory


def _mini_batch(rule: Rule, norm: Tensors, tokens: Tokens, memory: Memory, complete) -> tuple[torch.Tensor, Memory]:
    layers = [rule.layer(*parts) for parts in zip(memory.held, memory.pending, strict=True)]
    for _ in range(rule.passes):
        gradient = _gradient(layers, tokens.k, tokens.target, norm, rule.eps)
        for layer, (x, e) in zip(layers, gradient, strict=True):
            layer.learn(x, tokens.gate * e)
    y = _read(layers, tokens.q, norm, rule.eps)
    if complete is True:
        return y, Memory(tuple(layer.after() for layer in layers), (None,) * len(layers))
    going_on = Memory(memory.held, tuple(layer.sums() for layer in layers))
    if complete is False:
        return y, going_on
    over = Memory(tuple(layer.after() for layer in layers), tuple(rule.nothing(w) for w, *_ in memory.held))
    return y, over.where(complete, going_on)

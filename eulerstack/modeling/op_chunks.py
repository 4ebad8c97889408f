"""A recurrence over time, run a chunk of tokens at a time, whose backward pass computes each chunk again.

Only the inputs and the states between chunks are kept, so memory grows with the tokens and not with what a chunk
unfolds inside (states of all its tokens, or weights between them).

B batch, T tokens, L tokens of a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .op_precision import own_precision

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class ChunkRule:
    """One chunk of a recurrence and its gradients, as plain functions that autograd does not look into.

    `forward(inputs, params, resets, before) -> (y, after)` with inputs `[B, L, *]`, resets `[B, L]` bool or None (True:
    the state is cleared before that token), states `[B, *]`.
    `backward(inputs, params, resets, before, dy, dafter) -> (dinputs, dparams, dbefore)`, gradients of the same shapes.
    """

    forward: Callable
    backward: Callable


class _Chunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rule, chunk, n_inputs, resets, before, *tensors) -> Tensors:
        inputs, params = tensors[:n_inputs], tensors[n_inputs:]
        outputs, befores = [], []
        with own_precision(before.device):
            for now in _slices(inputs[0].shape[1], chunk):
                befores.append(before)
                y, before = rule.forward(*_chunk(inputs, resets, now, params), before)
                outputs.append(y)
        ctx.save_for_backward(resets, *tensors, *befores)
        ctx.rule, ctx.chunk, ctx.n_inputs, ctx.n_tensors = rule, chunk, n_inputs, len(tensors)
        return torch.cat(outputs, 1), before

    @staticmethod
    def backward(ctx, dy, dlast) -> tuple:
        resets, *saved = ctx.saved_tensors
        gradients = _Chunks.gradients(ctx, resets, saved, dy, dlast)
        return None, None, None, None, *_Final.apply(len(gradients), *gradients, dy, *saved)

    @staticmethod
    @torch.no_grad()
    def gradients(ctx, resets, saved, dy, dlast) -> Tensors:
        inputs, params, befores = saved[: ctx.n_inputs], saved[ctx.n_inputs : ctx.n_tensors], saved[ctx.n_tensors :]
        dinputs, dparams = [torch.empty_like(t) for t in inputs], [torch.zeros_like(t) for t in params]
        slices = _slices(inputs[0].shape[1], ctx.chunk)
        for now, before in zip(reversed(slices), reversed(befores), strict=True):
            chunk = _chunk(inputs, resets, now, params)
            with own_precision(dy.device):
                parts, param_parts, dlast = ctx.rule.backward(*chunk, before, dy[:, now], dlast)
            for whole, part in zip(dinputs, parts, strict=True):
                whole[:, now] = part
            for total, part in zip(dparams, param_parts, strict=True):
                total.add_(part)
        return dlast, *dinputs, *dparams


class _Final(torch.autograd.Function):
    """Gradients, the first tensors, tied to what they were made from, so that gradients of them are refused. torch's
    `once_differentiable` ties them to nothing, and `torch.autograd.grad` then leaves them out without a word."""

    @staticmethod
    def forward(ctx, count, *tensors) -> Tensors:
        return tensors[:count]

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("a recurrence in chunks has first gradients only; second ones were asked for")


def _slices(tokens: int, chunk: int) -> list[slice]:
    return [slice(t, t + chunk) for t in range(0, tokens, chunk)]


def _chunk(inputs: Tensors, resets: torch.Tensor | None, now: slice, params: Tensors) -> tuple:
    return tuple(t[:, now] for t in inputs), params, None if resets is None else resets[:, now]


def scan_chunks(
    rule: ChunkRule,
    inputs: Tensors,
    params: Tensors,
    before: torch.Tensor,
    resets: torch.Tensor | None,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All outputs `[B, T, *]` and the last state of the recurrence `rule`, from the state `before`.

    The first gradients are exact; asking for second ones raises RuntimeError.
    """
    return _Chunks.apply(rule, chunk, len(inputs), resets, before, *inputs, *params)

"""The selective scan of Mamba (Gu & Dao 2023, Mamba, section 3.3 and algorithm 2).

Each channel c carries N states through

    h_t[n, c] = exp(step_t[c] A[n, c]) h_{t-1}[n, c] + step_t[c] B_t[n] x_t[c]        y_t[c] = sum_n C_t[n] h_t[n, c]

The states of all tokens are N times larger than the input, so they are never held at once: a chunk of tokens is scanned
at a time, in place and in log2(chunk) steps. No decay is ever divided by, so nothing overflows however fast a state
decays.

B batch, T tokens, L tokens of a chunk, C channels, N states of a channel. C is innermost, so that every elementwise
pass runs over contiguous memory.
"""

import torch

from .op_chunks import ChunkRule, Tensors, scan_chunks
from .op_timestep import wide


def scan_(decay: torch.Tensor, h: torch.Tensor, *, reverse: bool = False) -> None:
    """Turn inputs `h` `[B, L, *]` into the states h_t += decay_t h_{t-1}, in place; `decay` is used up.

    `reverse` runs from the last token to the first. Pairs are merged, the half as long scan is solved, the tokens
    between are filled in: 3 L multiply-adds in 2 log2(L) steps (Blelloch 1990, Prefix sums and their applications).
    """
    n = h.shape[1]
    if n < 2:
        return
    odd = n % 2
    if reverse:
        first, second = slice(odd + 1, None, 2), slice(odd, n - 1, 2)
        rest, before = slice(1 - odd, n - 2, 2), slice(2 - odd, n - 1, 2)
    else:
        first, second = slice(0, n - odd, 2), slice(1, None, 2)
        rest, before = slice(2, None, 2), slice(1, n - 1, 2)
    h[:, second].addcmul_(decay[:, second], h[:, first])
    decay[:, second].mul_(decay[:, first])
    scan_(decay[:, second], h[:, second], reverse=reverse)
    h[:, rest].addcmul_(decay[:, rest], h[:, before])


def _decays_and_inputs(x, step, A, B, resets, before) -> Tensors:
    """What scan_ takes, `[B, L, N, C]` each; a reset is a decay of 0, the state before joins the first input."""
    decay = torch.mul(step[:, :, None], A).exp_()
    if resets is not None:
        decay.masked_fill_(resets[:, :, None, None], 0.0)
    h = (step * x)[:, :, None] * B[..., None]
    h[:, 0].addcmul_(decay[:, 0], before)
    return decay, h


def _forward(inputs: Tensors, params: Tensors, resets, before) -> Tensors:
    x, step, B, C = inputs
    decay, h = _decays_and_inputs(x, step, *params, B, resets, before)
    scan_(decay, h)
    return (C[:, :, None] @ h)[:, :, 0], h[:, -1].clone()


def _backward(inputs: Tensors, params: Tensors, resets, before, dy, dafter) -> tuple:
    (x, step, B, C), (A,) = inputs, params
    decay, h = _decays_and_inputs(x, step, A, B, resets, before)
    scratch = decay.clone()
    scan_(scratch, h)
    dC = (h @ dy[..., None])[..., 0]

    dh = C[..., None] * dy[:, :, None]  # gradient of h_t: its own output's, then that of h_{t+1} scanned backwards
    dh[:, -1] += dafter
    scratch[:, :-1] = decay[:, 1:]
    scan_(scratch, dh, reverse=True)
    dbefore = decay[:, 0] * dh[:, 0]

    dB = (dh @ (step * x)[..., None])[..., 0]
    dinput = (B[:, :, None] @ dh)[:, :, 0]  # gradient of step_t x_t
    dexponent = dh.mul_(decay)  # gradient of step_t A
    dexponent[:, 1:].mul_(h[:, :-1])
    dexponent[:, 0].mul_(before)
    dstep = torch.mul(dexponent, A, out=scratch).sum(2).addcmul_(x, dinput)
    dA = dexponent.mul_(step[:, :, None]).sum((0, 1))
    return (step * dinput, dstep, dB, dC), (dA,), dbefore


_RULE = ChunkRule(_forward, _backward)


def selective_scan(
    x: torch.Tensor,
    step: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    initial: torch.Tensor | None = None,
    resets: torch.Tensor | None = None,
    chunk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs `[B, T, C]` and the last state `[B, C, N]` of the selective scan.

    `x` and `step` `[B, T, C]` (a step of 0 leaves the state as it is), `A` `[C, N]`, `B` and `C` `[B, T, N]`, `initial`
    `[B, C, N]` or None for zeros, `resets` `[B, T]` bool, True where the state is cleared before the token. All is
    computed in float32, or in float64 when `x` is. `chunk`, the tokens scanned at once, does not change the result;
    by default it is short on a CPU, so that a chunk stays in its cache.
    """
    x = wide(x)
    step, A, B, C = (t.to(x.dtype) for t in (step, A.T.contiguous(), B, C))
    before = x.new_zeros(x.shape[0], *A.shape) if initial is None else initial.to(x.dtype).mT.contiguous()
    chunk = chunk or (16 if x.device.type == "cpu" else 128)
    y, last = scan_chunks(_RULE, (x, step, B, C), (A,), before, resets, chunk)
    return y, last.mT

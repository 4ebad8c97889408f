"""A causal convolution as long as the document (Poli et al. 2023, Hyena, section 2.1), by FFT.

    y_t[c] = sum over s <= t of h[t - s, c] u_s[c]

t - s counts the real tokens of a document: padding is neither read nor counted, wherever it stands, and a document does
not see another. So rows with padding are pushed together, and documents that share a row get rows of their own.

B batch, S past and present tokens, T tokens of this call, P = S - T, C channels, R rows.
"""

import torch
from torch.nn import functional as F

from .context import Context
from .op_precision import own_precision


def long_conv(u: torch.Tensor, h: torch.Tensor, context: Context) -> torch.Tensor:
    """Outputs `[B, T, C]` at the tokens of this call; those on padding mean nothing.

    `u` `[B, S, C]` and the filter `h` `[S, C]`, of one dtype, at least float32.
    """
    keep, document = context.key_keep, _documents(context)
    tokens = context.positions.shape[1]
    if keep is not None:
        u = u.masked_fill(~keep[..., None], 0.0)
    with own_precision(u.device):
        if tokens == 1:
            return _newest(u, h, keep, document)
        if document is not None:
            return _by_document(u, h, keep, document, tokens)
        if keep is not None:
            return _pushed_together(u, h, keep, tokens)
        return _Causal.apply(u, h, tokens)


def _documents(context: Context) -> torch.Tensor | None:
    """The number of each token's document `[B, S]`, None if a row holds one."""
    if context.key_documents is None and context.starts is not None:
        return context.starts.cumsum(1)
    return context.key_documents


def _newest(u, h, keep, document) -> torch.Tensor:
    """The output at the last token alone: a sum over the past, without FFT."""
    if keep is None:
        h = h.flip(0)
    else:
        count = keep.cumsum(1)
        h = h[count[:, -1:] - count]
    if document is not None:
        h = h * (document == document[:, -1:])[..., None]
    return (u * h).sum(1, keepdim=True)


def _pushed_together(u, h, keep, tokens: int) -> torch.Tensor:
    """Rows whose padding is moved to their left end, where it is zeros before the first token."""
    order = keep.to(torch.uint8).argsort(dim=1, stable=True)
    y = _Causal.apply(u.gather(1, order[..., None].expand_as(u)), h, tokens)
    # A real token of this call has no more real tokens from itself on than the call has, so it is among the last.
    place = (order.argsort(1)[:, -tokens:] - (u.shape[1] - tokens)).clamp(min=0)
    return y.gather(1, place[..., None].expand_as(y))


def _by_document(u, h, keep, document, tokens: int) -> torch.Tensor:
    """Every document with a token in this call in a row of its own, rows of about the same length together.

    Lengths are rounded up to powers of two, so at most twice the tokens are convolved, in log2(S) pieces.
    """
    total = u.shape[1]
    row = torch.arange(len(u), device=u.device)[:, None]
    number = (row * (document.max() + 1) + document).flatten()
    real = torch.arange(number.numel(), device=u.device) if keep is None else keep.flatten().nonzero()[:, 0]
    lengths = number[real].unique_consecutive(return_counts=True)[1]
    ends = lengths.cumsum(0)
    present = real[ends - 1] % total >= total - tokens
    lengths, ends = lengths[present], ends[present]
    powers = 2 ** torch.arange(total.bit_length() + 1, device=u.device)
    sizes = powers[torch.searchsorted(powers, lengths)]
    flat, where, values = u.flatten(0, 1), [], []
    for power in sizes.unique().tolist():
        length, end, size = lengths[sizes == power], ends[sizes == power], min(power, total)
        offset = torch.arange(size, device=u.device)
        inside = offset < length[:, None]  # [R, size]
        slot = real[((end - length)[:, None] + offset).clamp(max=len(real) - 1)]
        rows = flat[slot] * inside[..., None]
        where.append(slot[inside])
        values.append(_Causal.apply(rows, h[:size], size)[inside])
    y = flat.new_zeros(flat.shape)
    if where:
        y = y.index_copy(0, torch.cat(where), torch.cat(values))
    return y.view_as(u)[:, -tokens:]


class _Causal(torch.autograd.Function):
    """The convolution of `u` `[B, S, C]` with `h` `[S, C]`, at the last T tokens `[B, T, C]`."""

    @staticmethod
    def forward(ctx, u, h, tokens: int) -> torch.Tensor:
        total = u.shape[1]
        n = _fft_size(total + tokens - 1)  # what wraps around falls on tokens before the last T
        ctx.save_for_backward(u, h)  # and not their spectra, which are four times as large
        ctx.sizes = total, tokens, n
        return torch.fft.irfft(_spectrum(u, n) * _spectrum(h, n), n)[..., total - tokens : total].mT.contiguous()

    @staticmethod
    def backward(ctx, dy):
        (u, h), (total, tokens, n) = ctx.saved_tensors, ctx.sizes
        with own_precision(dy.device):
            Y = _spectrum(F.pad(dy, (0, 0, total - tokens, 0)), n)
            du = torch.fft.irfft(Y * _spectrum(h, n).conj(), n)[..., :total].mT if ctx.needs_input_grad[0] else None
            products = (Y * _spectrum(u, n).conj()).sum(0) if ctx.needs_input_grad[1] else None
            dh = None if products is None else torch.fft.irfft(products, n)[..., :total].mT
        return du, dh, None


def _spectrum(x: torch.Tensor, n: int) -> torch.Tensor:
    """`[*, S, C]` -> `[*, C, n / 2 + 1]`; over contiguous memory, which is several times faster."""
    return torch.fft.rfft(x.mT.contiguous(), n)


def _fft_size(least: int) -> int:
    """The smallest even 2^a, 3 2^a or 5 2^a that is not below `least`."""
    return min(next(m << a for a in range(1, 64) if m << a >= least) for m in (1, 3, 5))

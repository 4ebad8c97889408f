"""The experts of a mixture as packed matrices, and the ways to bring tokens to them and back.

N tokens, D d_model, F width of one expert, E experts, K top_k, C capacity of one expert. An assignment is a (choice,
token) pair, numbered choice * N + token: all first choices come before all second choices. The work grows with the
assignments, not with E. Experts are called and nothing else is asked of them, since an adapter may stand around them.
"""

import math

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .initial import Constant, Init, Rule
from .op_activation import gating
from .op_balance import count


class Experts(nn.Module):
    """E gated MLPs, down(gated(gate x, up x)), packed in 3D parameters: all get a gradient whoever was chosen."""

    def __init__(self, d_model: int, *, experts: int, d_ff: int, activation: str, bias: bool):
        super().__init__()
        self.experts = experts
        self.gated = gating(activation)
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * d_ff, d_model))
        self.down_proj = nn.Parameter(torch.empty(experts, d_model, d_ff))
        self.gate_up_bias = nn.Parameter(torch.empty(experts, 2 * d_ff)) if bias else None
        self.down_bias = nn.Parameter(torch.empty(experts, d_model)) if bias else None
        self.weight_filters = {}  # by name, what a packed matrix goes through before it is used

    def initial(self, init: Init) -> dict[str, Rule]:
        _, d_model, d_ff = self.down_proj.shape
        rules = {"gate_up_proj": init.matrix(d_model), "down_proj": init.matrix(d_ff, to_residual=True)}
        biases = {"gate_up_bias": Constant(0.0), "down_bias": Constant(0.0)}
        return rules | (biases if self.down_bias is not None else {})

    def forward(self, x: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """`x` [M, D], the rows of expert 0 first, then those of expert 1, ...; `sizes` [E] int: rows of each. None: `x`
        [E, C, D] are buffers of one length."""
        if sizes is None:
            return self._batched(x)
        gate_up, down = self._in_use("gate_up_proj"), self._in_use("down_proj")
        if _in_one_product(x, gate_up, down):
            ends = sizes.cumsum(0, dtype=torch.int32)
            gate, up = _grouped_linear(x, gate_up, self.gate_up_bias, sizes, ends).chunk(2, dim=-1)
            return _grouped_linear(self.gated(gate, up), down, self.down_bias, sizes, ends)
        hit = [(e, n) for e, n in enumerate(sizes.tolist()) if n] or [(0, 0)]
        packed = (gate_up, self.gate_up_bias, down, self.down_bias)
        if torch.is_grad_enabled():  # unbind's backward writes all experts once; indexing's would once for each expert
            packed = [p if p is None else p.unbind(0) for p in packed]
        parts = zip(hit, x.split([n for _, n in hit]), strict=True)
        return torch.cat([self._one(part, *(p if p is None else p[e] for p in packed)) for (e, _), part in parts])

    def _one(self, x, gate_up, gate_up_bias, down, down_bias) -> torch.Tensor:
        gate, up = F.linear(x, gate_up, gate_up_bias).chunk(2, dim=-1)
        return F.linear(self.gated(gate, up), down, down_bias)

    def _batched(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = _batched_linear(x, self._in_use("gate_up_proj"), self.gate_up_bias).chunk(2, dim=-1)
        return _batched_linear(self.gated(gate, up), self._in_use("down_proj"), self.down_bias)

    def _in_use(self, name: str) -> torch.Tensor:
        weight = getattr(self, name)
        return self.weight_filters[name](weight) if name in self.weight_filters else weight


def run_all(experts: nn.Module, x, selected: torch.Tensor, weights: torch.Tensor, *, number: int) -> torch.Tensor:
    """`x` [N, D], `selected` and `weights` [N, K] -> the weighted sum of each token's experts, of `number`, [N, D]."""
    flat = selected.T.flatten()
    order = flat.argsort(stable=True)
    return _grouped(experts, x, order, count(selected, number), weights)


def run_within_capacity(experts, x, selected, weights, keep, *, number: int, factor: float, padded: bool):
    """As `run_all`, but an expert takes at most C = ceil(factor * real tokens * K / E) assignments; the rest add zero.

    First choices go before second choices, earlier tokens before later ones (Lepikhin et al. 2020, GShard, section
    2.2). Padding (`keep` [N] False) takes no place. `padded` computes on buffers [E, C, D]; the result is the same.
    """
    real = selected.shape[0] if keep is None else int(keep.sum())
    factor = min(factor, number)  # a token takes one place of an expert, so this is room for all
    capacity = max(1, math.ceil(factor * real * selected.shape[1] / number - 1e-9))  # 1.1 * 50 / 5 is 11
    flat = selected.T.flatten()
    if keep is not None:
        flat = flat.masked_fill(~keep.repeat(selected.shape[1]), number)
    order = flat.argsort(stable=True)
    sizes = flat.bincount(minlength=number + 1)
    place = torch.arange(len(flat), device=flat.device) - (sizes.cumsum(0) - sizes)[flat[order]]
    taken = (place < capacity) & (flat[order] < number)
    order, place, sizes = order[taken], place[taken], sizes[:-1].clamp(max=capacity)
    if not padded:
        return _grouped(experts, x, order, sizes, weights)
    slot = flat[order] * capacity + place
    buffers = x.new_zeros(number * capacity, x.shape[1]).index_copy(0, slot, _rows(x, order))
    y = experts(buffers.unflatten(0, (number, capacity))).flatten(0, 1)
    return _combine(y[slot], order, weights).to(x.dtype)


def _grouped(experts: nn.Module, x, order, sizes: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the assignments `order` [M], sorted by expert, and bring them home."""
    return _combine(experts(_rows(x, order), sizes), order, weights).to(x.dtype)


def _rows(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, order % x.shape[0])


def _combine(y: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`y` [M, D] of the assignments `order` [M] -> [N, D]; one that is missing adds zero. Needs no atomic additions."""
    return (_weighted_sum if torch.compiler.is_compiling() else _Combine.apply)(y, order, weights)


def _weighted_sum(y: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    n, k = weights.shape
    empty = y.new_empty if len(order) == n * k else y.new_zeros
    home = empty(n * k, y.shape[1]).index_copy_(0, order, y).unflatten(0, (k, n))
    total = home[0] * weights[:, :1]
    for choice in range(1, k):
        total.addcmul_(home[choice], weights[:, choice : choice + 1])
    return total


class _Combine(torch.autograd.Function):
    """The weighted sum, which keeps `y` for its gradients and nothing of that size besides."""

    @staticmethod
    def forward(ctx, y, order, weights) -> torch.Tensor:
        ctx.save_for_backward(y, order, weights)
        return _weighted_sum(y, order, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx, dtotal) -> tuple:
        y, order, weights = ctx.saved_tensors
        n, k = weights.shape
        dy = _rows(dtotal, order)
        pairs = zip(y.chunk(4), dy.chunk(4), strict=True)  # a product of all rows would be the peak of a training step
        found = torch.cat([(part * dpart).sum(-1) for part, dpart in pairs])
        dweights = found.new_zeros(n * k).index_copy_(0, order, found).view(k, n).T
        dy.mul_(weights.T.flatten()[order, None])
        return dy.to(y.dtype), None, dweights


def _grouped_linear(x, weight, bias, sizes: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """`x` [M, I] in E consecutive groups, `weight` [E, O, I], `bias` [E, O] or None -> [M, O], by torch's kernel."""
    y = F.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    return y if bias is None else y + bias.repeat_interleave(sizes, 0, output_size=len(x))


def _batched_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y = x @ weight.transpose(1, 2)
    return y if bias is None else y + bias.unsqueeze(1)


def _in_one_product(x: torch.Tensor, *weights: torch.Tensor) -> bool:
    """Whether torch's grouped product does it: on a CPU from as many rows on as there are experts, since it looks at
    all, and under torch.compile, which takes it in bfloat16. It wants one dtype, whole 16 bytes and no autocast.
    Elsewhere the loop runs, which leaves a zero gradient to an expert that nobody chose on every device."""
    if not hasattr(F, "grouped_mm") or any(w.dtype != x.dtype for w in weights):
        return False
    if any(n * w.element_size() % 16 for w in weights for n in w.shape[1:]):
        return False
    if torch.compiler.is_compiling():
        return x.dtype == torch.bfloat16
    plain = x.device.type == "cpu" and x.dtype != torch.float64 and not torch.is_autocast_enabled("cpu")
    return plain and len(x) >= len(weights[0]) and all(t.data_ptr() % 16 == 0 for t in (x, *weights))

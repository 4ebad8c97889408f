"""What a model weighs and costs, exactly, from its IR alone: parameters, FLOPs, cache, state.

Every part states its own figures (`language/block.py`, Part); here they are summed.
"""

import math
from dataclasses import asdict, dataclass, replace

from eulerstack.ir.alike import alike
from eulerstack.ir.tensors import (
    after,
    before,
    branches,
    buffers,
    inner_dims,
    layer_parameters,
    mtp_parameters,
    parts_of,
    run_parameters,
)
from eulerstack.ir.types import DTYPE_BYTES, IR, Layer, layers_of
from eulerstack.language.block import Dims, Shape

FLOAT32_BYTES = DTYPE_BYTES["float32"]
PER_EVALUATION = ("flops_per_token", "kv_cache_bytes", "state_bytes")


@dataclass(frozen=True)
class LayerCosts:
    """The share of one layer; norms belong to it."""

    index: int
    template: str
    total: int
    active: int
    flops_per_token: int
    kv_cache_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class Costs:
    """`total` parameters, of which one token uses `active` (it leaves experts and extra heads idle) and `embedding` are
    the tables of tokens and positions; a tied weight counts once. `buffers` are stored numbers that are not trained.

    `flops_per_token` is the forward pass of one token in a context of `length`, two per multiply-add, of all products
    with weights and of attention over every key in reach, without a discount for causality (PaLM, appendix B), and of
    recurrences as they are written; norms, activations and the softmax itself are not counted. `kv_cache_bytes` and
    `state_bytes` are for one sequence of `length` tokens, `weight_bytes` for the checkpoint.
    """

    length: int
    total: int
    active: int
    embedding: int
    buffers: int
    weight_bytes: int
    flops_per_token: int
    kv_cache_bytes: int
    state_bytes: int
    layers: tuple[LayerCosts, ...]

    def to_dict(self) -> dict:
        return asdict(self)


def costs(ir: IR, length: int | None = None) -> Costs:
    """The costs of `ir` at `length` tokens, by default its max_seq_len."""
    length = length or ir.model.max_seq_len
    times = {index: _evaluations(run) for run in ir.schedule for index in layers_of(run)}
    layers = _costs_of_layers(ir, length, times)
    merges = [(run.merge, len(run.streams)) for run in ir.schedule if run.type == "parallel"]
    outer = [before(ir), after(ir), *(run_parameters(run, ir) for run in ir.schedule)]
    extra = _size(mtp_parameters(ir))
    total = sum(map(_size, outer)) + sum(layer.total for layer in layers) + extra
    stored = _size(buffers(ir))
    flops = sum(layer.flops_per_token for layer in layers) + 2 * ir.model.d_model * ir.model.vocab_size
    return Costs(
        length=length,
        total=total,
        active=total - extra - sum(layer.total - layer.active for layer in layers),
        embedding=_size(before(ir)),
        buffers=stored,
        weight_bytes=total * DTYPE_BYTES[ir.model.dtype] + stored * FLOAT32_BYTES,
        flops_per_token=flops + sum(merge.flops(ir.dims, many, length) for merge, many in merges),
        kv_cache_bytes=sum(layer.kv_cache_bytes for layer in layers)
        + sum(merge.kv_cache_bytes(ir.dims, length) for merge, _ in merges),
        state_bytes=sum(layer.state_bytes for layer in layers),
        layers=layers,
    )


def _evaluations(run) -> int:
    """How often the layers of a schedule entry run in one pass, each time with a state of its own."""
    return run.options.evaluations if run.type == "integrator" else 1


def _costs_of_layers(ir: IR, length: int, times: dict[int, int]) -> tuple[LayerCosts, ...]:
    """In order; layers that are built alike are counted once."""
    found = {}
    for group in alike(ir.layers):
        one = _layer_costs(group[0], ir.dims, length)
        for layer in group:
            many = {name: times[layer.index] * getattr(one, name) for name in PER_EVALUATION}
            found[layer.index] = replace(one, index=layer.index, **many)
    return tuple(found[layer.index] for layer in ir.layers)


def _layer_costs(layer: Layer, dims: Dims, length: int) -> LayerCosts:
    """Of one evaluation."""
    inner, parts = inner_dims(layer, dims), parts_of(layer).values()
    total = _size(layer_parameters(layer, dims))
    wrapped, many = layer.shape_change, len(branches(layer))
    gating = layer.depth_gating
    seen = math.ceil(gating.capacity * length) if gating else length  # tokens that reach the layer in training
    flops = sum(part.flops(inner, seen) for part in parts) + many * _around_a_branch(layer, dims)
    kv = sum(part.kv_cache_bytes(inner, length) for part in parts)
    if gating:  # the gate sees every token
        flops = seen * flops // length + gating.flops(dims)
        kv += gating.kv_cache_bytes(dims, length)
    state = sum(part.state_bytes(inner) for part in parts) + (many * wrapped.state_bytes(dims) if wrapped else 0)
    return LayerCosts(
        index=layer.index,
        template=layer.template,
        total=total,
        active=total - layer.ffn.idle(inner),
        flops_per_token=flops,
        kv_cache_bytes=kv,
        state_bytes=state,
    )


def _around_a_branch(layer: Layer, dims: Dims) -> int:
    """FLOPs of what leads to a branch and back."""
    around = [layer.shape_change, layer.residual.hyper]
    return sum(block.flops(dims) for block in around if block)


def _size(shapes: dict[str, Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())

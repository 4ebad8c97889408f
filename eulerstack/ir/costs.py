"""What a model weighs and costs, exactly, from its IR alone: parameters, FLOPs, cache, state.

Every part states its own figures (`language/block.py`, Part); here they are named, placed and summed. The IR must hold
nothing that is not built yet (`compiler/runtime.py`, unbuilt).
"""

import math
from dataclasses import asdict, dataclass

from eulerstack.ir.types import DTYPE_BYTES, IR, Layer
from eulerstack.language.block import Dims, Shape
from eulerstack.language.template import Norm

FLOAT32_BYTES = DTYPE_BYTES["float32"]


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
    """`total` parameters, of which one token uses `active` (it leaves experts idle) and `embedding` are the tables of
    tokens and positions; a tied weight counts once. `buffers` are stored numbers that are not trained.

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
    layers = tuple(_layer_costs(layer, ir.dims, length) for layer in ir.layers)
    outer = _before(ir) | _after(ir)
    total = _size(outer) + sum(layer.total for layer in layers)
    stored = _size(buffers(ir))
    return Costs(
        length=length,
        total=total,
        active=total - sum(layer.total - layer.active for layer in layers),
        embedding=_size(_before(ir)),
        buffers=stored,
        weight_bytes=total * DTYPE_BYTES[ir.model.dtype] + stored * FLOAT32_BYTES,
        flops_per_token=sum(layer.flops_per_token for layer in layers) + 2 * ir.model.d_model * ir.model.vocab_size,
        kv_cache_bytes=sum(layer.kv_cache_bytes for layer in layers),
        state_bytes=sum(layer.state_bytes for layer in layers),
        layers=layers,
    )


def parameters(ir: IR) -> dict[str, Shape]:
    """Every parameter of the model by its name in the checkpoint, with its shape; a tied head is not there twice."""
    layers = {
        f"model.layers.{layer.index}.{name}": shape
        for layer in ir.layers
        for name, shape in _layer_parameters(layer, ir.dims).items()
    }
    return _before(ir) | layers | _after(ir)


def buffers(ir: IR) -> dict[str, Shape]:
    """Every tensor of the checkpoint that is not trained, always float32."""
    return {
        f"model.layers.{layer.index}.ffn.{name}": shape
        for layer in ir.layers
        for name, shape in layer.ffn.buffers(ir.dims).items()
    }


def _before(ir: IR) -> dict[str, Shape]:
    d = ir.model.d_model
    tables: dict[str, Shape] = {"model.embed_tokens.weight": (ir.model.vocab_size, d)}
    if ir.embedding.positional == "learned":
        tables["model.embed_positions.weight"] = (ir.model.max_seq_len, d)
    return tables


def _after(ir: IR) -> dict[str, Shape]:
    d, vocab, shapes = ir.model.d_model, ir.model.vocab_size, {}
    if ir.head.final_norm:
        shapes |= _norm("model.norm", ir.layers[-1].norm, d)
    if not ir.head.tie_weights:
        shapes["lm_head.weight"] = (vocab, d)
    return shapes | ({"lm_head.bias": (vocab,)} if ir.head.bias else {})


def _layer_parameters(layer: Layer, dims: Dims) -> dict[str, Shape]:
    """By name inside the layer: each part that is there, and the norms of its branch."""
    shapes, present = {}, [role for role in ("mixer", "ffn") if getattr(layer, role).type != "none"]
    for role in present:
        shapes |= {f"{role}.{name}": shape for name, shape in getattr(layer, role).tensors(dims).items()}
    for role in ["mixer"] if layer.residual.type == "parallel" else present:
        for name in [f"{role}_norm"] + [f"{role}_post_norm"] * (layer.norm.position == "sandwich"):
            shapes |= _norm(name, layer.norm, dims.d_model)
    return shapes


def _norm(name: str, norm: Norm, d: int) -> dict[str, Shape]:
    return {f"{name}.weight": (d,)} | ({f"{name}.bias": (d,)} if norm.bias else {})


def _layer_costs(layer: Layer, dims: Dims, length: int) -> LayerCosts:
    total = _size(_layer_parameters(layer, dims))
    return LayerCosts(
        index=layer.index,
        template=layer.template,
        total=total,
        active=total - layer.ffn.idle(dims),
        flops_per_token=layer.mixer.flops(dims, length) + layer.ffn.flops(dims, length),
        kv_cache_bytes=layer.mixer.kv_cache_bytes(dims, length),
        state_bytes=layer.mixer.state_bytes(dims),
    )


def _size(shapes: dict[str, Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())

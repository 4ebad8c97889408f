"""Every tensor of a model's checkpoint by name and shape, from its IR alone.

Every part names its own tensors (`language/block.py`, Part); here they are placed.
"""

from dataclasses import replace

from eulerstack.ir.types import IR, Layer, Run
from eulerstack.language.block import Dims, Shape
from eulerstack.language.template import Norm, Template

Shapes = dict[str, Shape]


def parameters(ir: IR) -> Shapes:
    """Every parameter of the model by its name in the checkpoint, with its shape; a tied head is not there twice."""
    shapes = before(ir)
    for layer in ir.layers:
        shapes |= under(f"model.layers.{layer.index}", layer_parameters(layer, ir.dims))
    for number, run in enumerate(ir.schedule):
        shapes |= under(f"model.runs.{number}", run_parameters(run, ir))
    return shapes | mtp_parameters(ir) | after(ir)


def buffers(ir: IR) -> Shapes:
    """Every tensor of the checkpoint that is not trained, always float32."""
    shapes: Shapes = {}
    for layer in ir.layers:
        shapes |= under(f"model.layers.{layer.index}", _layer_buffers(layer, ir.dims))
    for prefix in ir.head.mtp.layer_prefixes() if ir.head.mtp else ():
        shapes |= under(prefix, _layer_buffers(ir.mtp_layer, ir.dims))
    return shapes


def under(prefix: str, shapes: Shapes) -> Shapes:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def inner_dims(layer: Layer | Template, dims: Dims) -> Dims:
    """The dims that the parts of a layer see: its own width where it has one."""
    return replace(dims, d_model=layer.shape_change.d_out) if layer.shape_change else dims


def before(ir: IR) -> Shapes:
    """The tables of tokens and positions."""
    d = ir.model.d_model
    tables: Shapes = {"model.embed_tokens.weight": (ir.model.vocab_size, d)}
    if ir.embedding.positional == "learned":
        tables["model.embed_positions.weight"] = (ir.model.max_seq_len, d)
    return tables


def after(ir: IR) -> Shapes:
    """The final norm and the head."""
    d, vocab, shapes = ir.model.d_model, ir.model.vocab_size, {}
    if ir.head.final_norm:
        shapes |= norm_parameters("model.norm", ir.layers[-1].norm, d)
    if not ir.head.tie_weights:
        shapes["lm_head.weight"] = (vocab, d)
    return shapes | ({"lm_head.bias": (vocab,)} if ir.head.bias else {})


def branches(layer: Layer) -> tuple[str, ...]:
    """The residual branches of a layer; a parallel residual is one."""
    mixes = ["mixer"] if layer.mixer.type != "none" or layer.memory else []
    feeds = ["ffn"] if layer.ffn.type != "none" else []
    return ("mixer",) if layer.residual.type == "parallel" else (*mixes, *feeds)


def parts_of(layer: Layer) -> dict:
    """The parts of a layer that are there, by role."""
    found = {"mixer": layer.mixer, "memory": layer.memory, "ffn": layer.ffn}
    return {role: part for role, part in found.items() if part is not None and part.type != "none"}


def layer_parameters(layer: Layer, dims: Dims) -> Shapes:
    """By name inside the layer: each part that is there, and what stands around each branch."""
    shapes: Shapes = {}
    for role, part in parts_of(layer).items():
        shapes |= under(role, part.tensors(inner_dims(layer, dims)))
    for branch in branches(layer):
        for name in [f"{branch}_norm"] + [f"{branch}_post_norm"] * (layer.norm.position == "sandwich"):
            shapes |= norm_parameters(name, layer.norm, dims.d_model)
        if layer.shape_change:
            pair = layer.shape_change.tensors(dims)
            shapes |= {f"{branch}_{name}": shape for name, shape in pair.items()}
        if layer.residual.hyper:
            shapes |= under(f"{branch}_hyper", layer.residual.hyper.tensors(dims))
    return shapes | (under("depth", layer.depth_gating.tensors(dims)) if layer.depth_gating else {})


def _layer_buffers(layer: Layer, dims: Dims) -> Shapes:
    shapes: Shapes = {}
    for role, part in parts_of(layer).items():
        shapes |= under(role, part.buffers(inner_dims(layer, dims)))
    return shapes


def run_parameters(run: Run, ir: IR) -> Shapes:
    """What a schedule entry has beside its layers."""
    if run.type == "parallel":
        return run.merge.tensors(ir.dims, len(run.streams))
    if run.type == "integrator" and run.options.output == "token":
        return norm_parameters("norm", ir.layers[run.layer].norm, ir.model.d_model)
    return {}


def mtp_parameters(ir: IR) -> Shapes:
    """The extra prediction heads: what stands around their layers, and the layers."""
    if ir.head.mtp is None:
        return {}
    last = norm_parameters("norm", ir.layers[-1].norm, ir.model.d_model) if ir.head.final_norm else {}
    shapes = ir.head.mtp.tensors(ir.dims, last)
    for prefix in ir.head.mtp.layer_prefixes():
        shapes |= under(prefix, layer_parameters(ir.mtp_layer, ir.dims))
    return shapes


def norm_parameters(name: str, norm: Norm, d: int) -> Shapes:
    return {f"{name}.weight": (d,)} | ({f"{name}.bias": (d,)} if norm.bias else {})

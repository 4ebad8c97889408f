"""The law of the IR, in one place: what every stage after normalize may rely on. Checked at the borders of stages."""

from collections.abc import Iterator

from eulerstack.errors import NormalizationError, Problem
from eulerstack.ir.alike import alike
from eulerstack.ir.tensors import inner_dims
from eulerstack.ir.types import IR, Layer, layers_of
from eulerstack.language.block import Dims
from eulerstack.language.template import state_of


def verify(ir: IR) -> IR:
    """`ir` itself, if it keeps the law; NormalizationError with every breach otherwise."""
    breaches = [breach for article in ARTICLES for breach in article(ir)]
    if breaches:
        fix = "this is a defect of whatever made the IR; normalize the preset again"
        problems = (
            Problem("NormalizationError", ir.name, None, None, where, what, fix, "docs/language.md")
            for where, what in breaches
        )
        raise NormalizationError(problems)
    return ir


Breaches = Iterator[tuple[str, str]]


def layers_are_in_order(ir: IR) -> Breaches:
    """Every layer stands at its index and belongs to exactly one entry of the schedule, in order."""
    scheduled = [(i, entry) for entry, run in enumerate(ir.schedule) for i in layers_of(run)]
    if scheduled != [(layer.index, layer.entry) for layer in ir.layers] or not ir.layers:
        yield "schedule", "does not list every layer once and in order"
    if [layer.index for layer in ir.layers] != list(range(len(ir.layers))):
        yield "layers", "an index is not the place in the list"


def sizes_are_written(ir: IR) -> Breaches:
    model = ir.model
    for key in ("n_kv_heads", "head_dim", "d_ff"):
        if getattr(model, key) is None:
            yield f"model.{key}", "is not written out"
    if model.n_kv_heads and model.n_heads % model.n_kv_heads:
        yield "model.n_kv_heads", "does not divide n_heads"
    if ir.head.final_norm is None:
        yield "head.final_norm", "is not written out"
    if isinstance(ir.training_hints.init, str):
        yield "training_hints.init", "is not written out"
    if ir.head.tie_weights != ir.embedding.tie_word_embeddings:
        yield "embedding.tie_word_embeddings", "differs from head.tie_weights"


def rotation_is_in_pairs(ir: IR) -> Breaches:
    rotates = any(layer.mixer.type == "attention" for layer in ir.layers)
    if rotates and ir.model.head_dim and not ir.embedding.turns(ir.model.head_dim):
        rotated = int(ir.model.head_dim * ir.embedding.rope_fraction)
        yield "model.head_dim", f"{rotated} of {ir.model.head_dim} channels cannot rotate in pairs"


def layers_are_complete(ir: IR) -> Breaches:
    if any(getattr(ir.model, key) is None for key in ("n_kv_heads", "head_dim", "d_ff")):
        return
    for group in alike(_all_layers(ir)):
        breaches = tuple(_incomplete(group[0], inner_dims(group[0], ir.dims)))
        yield from ((f"layers[{layer.index}]{where}", what) for layer in group for where, what in breaches)


def _incomplete(layer: Layer, dims: Dims) -> Breaches:
    for role in ("mixer", "ffn"):
        part = getattr(layer, role)
        if part.completed(dims) != part:
            yield f".{role}", "a default is not written out"
    if layer.mixer.type == layer.ffn.type == "none":
        yield "", "neither mixer nor ffn"
    if layer.norm.bias is None:
        yield ".norm.bias", "is not written out"
    if layer.state != state_of(layer.mixer):
        yield ".state", f"is not what a {layer.mixer.type} mixer keeps"


def one_residual_stream(ir: IR) -> Breaches:
    kinds = {(layer.residual.type, layer.residual.hyper and layer.residual.hyper.expand) for layer in _all_layers(ir)}
    if len(kinds) > 1:
        yield "layers", "use more than one kind of residual"


ARTICLES = (layers_are_in_order, sizes_are_written, rotation_is_in_pairs, layers_are_complete, one_residual_stream)


def _all_layers(ir: IR) -> tuple[Layer, ...]:
    return ir.layers + ((ir.mtp_layer,) if ir.mtp_layer else ())

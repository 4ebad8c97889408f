"""One kind of layer as text: each branch of the residual stream with what stands on it, in the order of its work."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from eulerstack.cli.kinds import Kind
from eulerstack.cli.tables import labelled
from eulerstack.cli.words import ffn_words, layers, mixer_name, mixer_words, options, percent, short
from eulerstack.ir.tensors import branches, inner_dims
from eulerstack.ir.types import Layer
from eulerstack.language.block import Dims

# The stream is the line on the left: a branch leaves it, goes on, and comes back; a part on the stream itself.
OFF, ON, BACK, STREAM = "  |-> ", "  |   ", "  |<- ", "  o   "


def draw_layer(kind: Kind, dims: Dims) -> list[str]:
    """A title with the layer's places, then its branches."""
    layer = kind.layer
    lines = labelled("", short(kind.name), [_places(kind)])
    if kind.own:
        lines += labelled("  ", "differs in", kind.own)
    if gate := layer.depth_gating:
        capacity = f"{percent(gate.capacity)} of the tokens pass in training, the others go around the layer"
        lines += labelled(STREAM, "depth gate", [gate.router, capacity])
    for branch in branches(layer):
        lines += _branch(layer, branch, dims)
    return lines


def _branch(layer: Layer, branch: str, dims: Dims) -> Iterator[str]:
    """Off the stream, through norms, another width and the parts, and back onto it."""
    norm, position, change, hyper = layer.norm, layer.norm.position, layer.shape_change, layer.residual.hyper
    steps: list[tuple[str, Sequence[str]]] = []
    if hyper:
        steps.append((f"read {hyper.expand} streams", ["as one"]))
    if position in ("pre", "sandwich"):
        steps.append((norm.type, _norm_words(norm)))
    if change:
        steps.append((f"in {change.projection}", [f"{dims.d_model:,} -> {change.d_out:,}"]))
    steps += _parts(layer, branch, inner_dims(layer, dims))
    if change:
        steps.append((f"out {change.projection}", [f"{change.d_out:,} -> {dims.d_model:,}"]))
    if position in ("sandwich", "post_branch"):
        steps.append((norm.type, [*_norm_words(norm), "of what the branch adds"]))
    for number, (label, words) in enumerate(steps):
        yield from labelled(ON if number else OFF, label, words)
    yield from labelled(BACK, *_join(layer))
    if position == "post":
        yield from labelled(STREAM, norm.type, [*_norm_words(norm), "of the stream"])


def _join(layer: Layer) -> tuple[str, list[str]]:
    hyper, scaling = layer.residual.hyper, layer.residual.scaling
    words = [] if scaling == 1.0 else [f"scaling {scaling:g}"]
    if hyper is None:
        return "add", words
    steps = [f"sinkhorn_iters {hyper.sinkhorn_iters}"] if hyper.mixing == "birkhoff" else []
    return f"write {hyper.expand} streams", [f"mixing {hyper.mixing}", *steps, *words]


def _parts(layer: Layer, branch: str, dims: Dims) -> Iterator[tuple[str, Sequence[str]]]:
    """What computes on a branch; of parts that read the same input each but the first is marked by a plus."""
    plus = ""
    if branch == "mixer" and layer.mixer.type != "none":
        yield from part_lines(layer.mixer, dims)
        plus = "+ "
    if branch == "mixer" and layer.memory:
        yield f"{plus}{layer.memory.type}", [*options(layer.memory), "on the mixer's input"]
        plus = "+ "
    if layer.ffn.type != "none" and (branch == "ffn" or layer.residual.type == "parallel"):
        yield f"{plus}{layer.ffn.type}", ffn_words(layer.ffn, dims) + (["on the same input"] if plus else [])


def part_lines(mixer: Any, dims: Dims) -> Iterator[tuple[str, Sequence[str]]]:
    """A mixer; of a branched one the selector, then each of its branches."""
    if mixer.type != "branched":
        yield mixer_name(mixer), mixer_words(mixer, dims)
        return
    selector = mixer.branched.selector
    yield "branched", [f"top_k {selector.top_k}" if selector.type == "top_k" else selector.type]
    for name, inner in mixer.branched.branches.items():
        yield f"  {short(name, 20)}", [mixer_name(inner), *mixer_words(inner, dims)]


def _norm_words(norm: Any) -> list[str]:
    """What is not usual about it; its position is drawn."""
    usual = norm.bias is (norm.type == "layernorm")
    return list(options(replace(norm, bias=None) if usual else norm, ("position",)))


def _places(kind: Kind) -> str:
    """The layers of a kind as ranges: 0-2, 4."""
    if not kind.layers:
        return "layers of the extra heads"
    ranges: list[list[int]] = []
    for index in kind.layers:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges[:12])
    more = ", ..." if len(ranges) > 12 else ""
    return f"{layers(len(kind.layers))}: {shown}{more}"

"""The kinds of layers of a model: layers that are built alike, wherever they stand."""

from dataclasses import asdict, dataclass

from eulerstack.cli.changes import changes
from eulerstack.cli.words import said
from eulerstack.ir.alike import PLACE, named
from eulerstack.ir.types import IR, Layer


@dataclass(frozen=True)
class Kind:
    """`name` is that in `block_pattern` of config.json: the template's, with a number where overrides or gates make
    several kinds of one template; `own` is what tells it from the first of them. `layers` are their places; none for a
    kind of extra heads alone."""

    name: str
    layer: Layer
    layers: tuple[int, ...]
    own: tuple[str, ...] = ()


def kinds_of(ir: IR) -> tuple[Kind, ...]:
    """Every kind in the order of its first layer; a kind that only extra heads use is the last."""
    first: dict[str, Layer] = {}
    kinds = []
    for name, group in named(ir.layers + ((ir.mtp_layer,) if ir.mtp_layer else ())).items():
        layer = group[0]
        known = first.setdefault(layer.template, layer)
        places = tuple(one.index for one in group if one is not ir.mtp_layer)
        kinds.append(Kind(name, layer, places, _difference(layer, known)))
    return tuple(kinds)


def _difference(layer: Layer, first: Layer) -> tuple[str, ...]:
    return tuple(f"{change.key} {said(change.b)}" for change in changes(built(first), built(layer)))


def built(layer: Layer) -> dict:
    """What a layer is made of as a tree of plain values, without its place."""
    return {key: value for key, value in asdict(layer).items() if key not in PLACE}

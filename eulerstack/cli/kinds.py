"""The kinds of layers of a model: layers that are built alike, wherever they stand."""

from dataclasses import asdict, dataclass
from itertools import count

from eulerstack.cli.changes import changes
from eulerstack.cli.words import said
from eulerstack.ir.alike import PLACE, alike
from eulerstack.ir.types import IR, Layer


@dataclass(frozen=True)
class Kind:
    """`name` is the template's, with a number where overrides or gates make several kinds of one template; `own` is
    what tells it from the template's first kind. `layers` are their places; none for a kind of extra heads alone."""

    name: str
    layer: Layer
    layers: tuple[int, ...]
    own: tuple[str, ...] = ()


def kinds_of(ir: IR) -> tuple[Kind, ...]:
    """Every kind in the order of its first layer; a kind that only extra heads use is the last."""
    groups = alike(ir.layers + ((ir.mtp_layer,) if ir.mtp_layer else ()))
    taken = {group[0].template for group in groups}
    first: dict[str, Layer] = {}
    kinds = []
    for layer, *others in groups:
        known = first.setdefault(layer.template, layer)
        name = layer.template if known is layer else _name(layer.template, taken)
        places = tuple(one.index for one in (layer, *others) if one is not ir.mtp_layer)
        kinds.append(Kind(name, layer, places, _difference(layer, known)))
    return tuple(sorted(kinds, key=lambda kind: kind.layers[:1] or (len(ir.layers),)))


def _name(template: str, taken: set[str]) -> str:
    """The template's with the first number that makes it a name of its own."""
    name = next(name for number in count(2) if (name := f"{template}-{number}") not in taken)
    taken.add(name)
    return name


def _difference(layer: Layer, first: Layer) -> tuple[str, ...]:
    return tuple(f"{change.key} {said(change.b)}" for change in changes(built(first), built(layer)))


def built(layer: Layer) -> dict:
    """What a layer is made of as a tree of plain values, without its place."""
    return {key: value for key, value in asdict(layer).items() if key not in PLACE}

"""How two models differ in structure: key by key, with kinds of layers held against each other."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from eulerstack.cli.changes import Change, changes
from eulerstack.cli.diagram import Diagram
from eulerstack.cli.kinds import Kind, built
from eulerstack.cli.layer_diagram import part_lines
from eulerstack.cli.unread import read
from eulerstack.cli.words import brief_layer, ffn_words, layers, options, quoted, untold
from eulerstack.ir.tensors import inner_dims
from eulerstack.ir.types import IR

BLOCKS = ("model", "embedding", "head", "tokenizer_contract", "training_hints", "compatibility", "transition")
# What a model is called makes no difference, and what the head says of ties goes for the embedding.
UNTOLD = {"model": ("name",), "embedding": ("tie_word_embeddings",)}


@dataclass(frozen=True)
class Pair:
    """A kind of layer on both sides, or on one, with what differs; counts and names are among the changes."""

    a: Kind | None
    b: Kind | None
    changes: tuple[Change, ...] = ()

    @property
    def differs(self) -> bool:
        return bool(self.changes) or self.a is None or self.b is None


def blocks(a: IR, b: IR) -> dict[str, list[Change]]:
    """The blocks of a preset, but for its layers, that are not the same, in the order of a preset."""
    found = {}
    for name in BLOCKS:
        one, other = (read(_tree(getattr(ir, name), UNTOLD.get(name, ())), name) for ir in (a, b))
        found[name] = list(changes(one, other))
    modes = ({mode.name: asdict(mode) for mode in ir.execution_modes} for ir in (a, b))
    found["execution_modes"] = list(changes(*modes))
    found["reserved"] = list(changes(a.reserved, b.reserved))
    return {name: found[name] for name in found if found[name]}


def schedules(a: Diagram, b: Diagram, pairs: list[Pair]) -> tuple[str, str] | None:
    """Both schedules on a line each, if they are not the same."""
    numbered = list(enumerate(pairs))
    one = _order(a, {pair.a.name: number for number, pair in numbered if pair.a})
    other = _order(b, {pair.b.name: number for number, pair in numbered if pair.b})
    return None if one == other else (in_a_line(a.tree()), in_a_line(b.tree()))


def in_a_line(tree: list[dict]) -> str:
    """A folded schedule: 4 x (3 x mamba, attention)."""
    words = []
    for node in tree:
        if "group" in node:
            text = f"({in_a_line(node['group'])})"
        elif "streams" in node:
            streams = (f"{quoted(name)}: {in_a_line(body)}" for name, body in node["streams"].items())
            text = f"[{' | '.join(streams)}; {node['merge']}]"
        else:
            own = node.get("integrator")
            layer = quoted(node["layer"])
            text = f"[{own['type']}, {own['steps']} steps of {layer}]" if own else layer
        words.append(f"{node['times']} x {text}" if node["times"] > 1 else text)
    return ", ".join(words)


def _order(diagram: Diagram, ids: dict[str, int]) -> list:
    """The schedule with the number of its pair for each layer, however it is cut into entries."""
    ir, name = diagram.ir, lambda index: ids[diagram.kinds[diagram.kind_of[index]].name]
    order: list = []
    for run in ir.schedule:
        if run.type == "plain":
            order += [name(index) for index in run.layers]
        elif run.type == "integrator":
            own = asdict(run.options) | {"body": name(run.layer)}
            order.append(own)
        else:
            order.append((run.merge, [(s.stream, [name(index) for index in s.layers]) for s in run.streams]))
    return order


def pairs_of(a: Diagram, b: Diagram) -> list[Pair]:
    """Kinds that belong together: of one name, else of one mixer and FFN, else of one mixer, else the only ones left.

    Those of one key go together in order, so that the pairs are the same whichever side is named first.
    """
    left, right = list(a.kinds), list(b.kinds)
    found: list[tuple[Kind | None, Kind | None]] = []
    for key in (_by_name, _by_parts, _by_mixer):
        found += _matched(left, right, key)
    if len(left) == len(right) == 1:
        found.append((left.pop(), right.pop()))
    found += [(kind, None) for kind in left] + [(None, kind) for kind in right]
    return [Pair(one, other, tuple(_of_kinds(one, other, a.ir, b.ir))) for one, other in found]


def _by_name(kind: Kind) -> Any:
    return kind.name


def _by_parts(kind: Kind) -> Any:
    return kind.layer.mixer.type, kind.layer.ffn.type


def _by_mixer(kind: Kind) -> Any:
    return kind.layer.mixer.type


def _matched(left: list[Kind], right: list[Kind], key: Callable[[Kind], Any]) -> list[tuple[Kind, Kind]]:
    """The pairs of one key, taken off both lists."""
    found = []
    for kind in tuple(left):
        other = next((other for other in right if key(other) == key(kind)), None)
        if other is not None:
            left.remove(kind)
            right.remove(other)
            found.append((kind, other))
    return found


def _of_kinds(a: Kind | None, b: Kind | None, *irs: IR) -> Iterator[Change]:
    if a is None or b is None:
        return
    if a.name != b.name:
        yield Change("template", a.name, b.name)
    if len(a.layers) != len(b.layers):
        yield Change("layers", len(a.layers), len(b.layers))
    one, other = (_tree_of(kind, ir) for kind, ir in zip((a, b), irs, strict=True))
    for role in ("mixer", "memory", "ffn", "norm", "residual", "shape_change", "depth_gating"):
        parts = tuple(getattr(kind.layer, role) for kind in (a, b))
        types = [getattr(part, "type", None) for part in parts]
        if role in ("mixer", "memory", "ffn") and types[0] != types[1]:
            texts = (part_words(role, part, kind, ir) for part, kind, ir in zip(parts, (a, b), irs, strict=True))
            yield Change(role, *texts)
        else:
            yield from changes({role: one[role]}, {role: other[role]})


def part_words(role: str, part: Any, kind: Kind, ir: IR) -> str | None:
    """A part in words, None where there is none."""
    if part is None or part.type == "none":
        return None
    dims = inner_dims(kind.layer, ir.dims)
    if role == "mixer":
        return "; ".join(", ".join([name.strip(), *words]) for name, words in part_lines(part, dims))
    return ", ".join([part.type, *(ffn_words(part, dims) if role == "ffn" else options(part))])


def kind_words(kind: Kind) -> str:
    """A kind that only one side has: what it is made of, and of how many layers."""
    return ", ".join([*brief_layer(kind.layer), layers(len(kind.layers))])


def _tree_of(kind: Kind, ir: IR) -> dict:
    """A kind as a tree, without values that only follow from the sizes of the model, or that nothing reads."""
    tree = built(kind.layer)
    derived = untold(kind.layer.mixer, inner_dims(kind.layer, ir.dims)) & {"scale"}
    for name in derived:
        tree["mixer"]["attention"].pop(name)
    return read(tree)


def _tree(block: Any, without: tuple[str, ...]) -> dict:
    tree = asdict(block) if is_dataclass(block) else {}
    return {key: value for key, value in tree.items() if key not in without}

"""What is asked of every preset file, of the catalogue and of the primitives alike. Read by path (runpy)."""

import math
import re
from itertools import takewhile
from pathlib import Path

from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.build import build_on_meta, plan
from eulerstack.ir.tensors import buffers, parameters
from eulerstack.ir.types import IR

ENTRIES = ("Teaches", "Compare with", "Papers", "Numbers")
COMPARED = re.compile(r"(\w+)(?: \((?:[^()]|\([^()]*\))+\))?(?:, |\.$)")


def head(path: Path) -> dict[str, str]:
    """The comment at the head of a preset file by its entries, in order, wrapped lines joined.

    `schema` and `title` are what stands in the paragraphs before them.
    """
    comment = list(takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines()))
    schema, title, entries = "\n".join(line[2:] for line in comment).split("\n\n")
    found = {"schema": schema, "title": title}
    for line in entries.splitlines():
        key, _, rest = line.partition(": ")
        if key in ENTRIES:
            found[key] = rest
        else:
            found[key := list(found)[-1]] += f" {line.strip()}"
    return found


def compared(text: str) -> list[str] | None:
    """The names in `a (what differs), b, c (how these two differ).`; none if it is written in another way."""
    listed = text.endswith(").") and re.fullmatch(f"(?:{COMPARED.pattern})+", text)
    return COMPARED.findall(text) if listed else None


def kinds(ir: IR) -> set[tuple]:
    """What tells a layer, and a run of the schedule, from the others."""
    layers = {(x.template, x.mixer.type, x.ffn.type, _bounded(x), x.depth_gating is None) for x in ir.layers}
    return layers | {
        (run.type, getattr(run, "merge", None) and run.merge.type, getattr(run, "options", None) and run.options.type)
        for run in ir.schedule
    }


def _bounded(layer) -> bool:
    attention = getattr(layer.mixer, "attention", None)
    return bool(attention and attention.window)


def tensors(ir: IR) -> tuple[dict, dict]:
    """The shapes of the parameters and of the buffers of the model, by name; a tied head counts once.

    An export must write the same, which is asked here, where the model is at hand.
    """
    model = build_on_meta(runtime_config(ir))
    built = {name: tuple(p.shape) for name, p in model.named_parameters()}
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    kept = {name: tuple(t.shape) for name, t in model.state_dict().items() if name not in built.keys() | tied}
    assert {tensor.name: tuple(tensor.shape) for tensor in plan(model)} == built | kept
    return built, kept


def predicted(ir: IR) -> tuple[dict, dict]:
    """The same without building it."""
    return tuple({name: tuple(shape) for name, shape in found.items()} for found in (parameters(ir), buffers(ir)))


def numbers(shapes: dict[str, tuple[int, ...]]) -> int:
    """How many numbers tensors of these shapes hold."""
    return sum(map(math.prod, shapes.values()))

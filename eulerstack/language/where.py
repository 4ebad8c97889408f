"""Addresses inside a document: how they print, and which section of the reference explains them."""

import re
from collections.abc import Iterator

Where = tuple[str | int, ...]

REFERENCE = "docs/language.md"
PLAIN = re.compile(r"[\w.$-]{1,80}")


def dotted(where: Where) -> str:
    """`("layer_schedule", 0, "template")` -> `layer_schedule[0].template`."""
    text = ""
    for step in where:
        text += f"[{step}]" if isinstance(step, int) else f".{_name(step)}"
    return text.removeprefix(".")


def _name(key: str) -> str:
    return key if PLAIN.fullmatch(key) else repr(key if len(key) <= 80 else key[:77] + "...")


def see(where: Where | None) -> str:
    """The section that explains `where`; None is the YAML itself."""
    return f"{REFERENCE}#{'yaml' if where is None else _section(where)}"


def _section(where: Where) -> str:
    if not where:
        return "top-level"
    if where[0] == "layer_templates":
        return where[2] if len(where) > 2 and where[2] in TEMPLATE_SECTIONS else "layer_templates"
    return where[0] if where[0] in SECTIONS else "top-level"


TEMPLATE_SECTIONS = ("mixer", "ffn", "norm", "residual", "state", "memory", "shape_change")
SECTIONS = (
    "let",
    "model",
    "tokenizer_contract",
    "embedding",
    "layer_schedule",
    "head",
    "training_hints",
    "compatibility",
    "execution_modes",
    "transition",
)


def leaves(values: dict, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value of a tree of mappings that is none itself, with its dotted address."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value

"""The tables of docs/language.md, from the JSON Schema: every block of the language with its keys, values and defaults.

A table stands between `<!-- keys: Block -->` and `<!-- end -->`, where Block is the name of its class (`Attention`; a
kind of mixer or FFN `mixers.attention`), or `Preset` for the document. `rewritten` puts there what the schema says.
Several names make one table: a block that lies in one before it follows its key there, as `key.inner`, and any other
adds its rows below.

A key whose default depends on others has null for it in the schema; its description then ends with "; by default
<words>", and these words are its default in the table.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

TABLE = re.compile(r"(<!-- keys: ([\w. ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
HEADER = "| key | value | default | meaning |\n|---|---|---|---|\n"
WORDS = {"string": "text", "boolean": "true, false", "null": "null"}
BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
DERIVED = "; by default "
SHOWN = 4  # keys of a block that stand for it in the cell of a value


def rewritten(text: str, schema: dict[str, Any]) -> str:
    """`text` with every marked table as the schema has it. KeyError for the name of no block."""
    return TABLE.sub(lambda found: f"{found[1]}\n{table(found[2].split(), schema)}\n{found[4]}", text)


def marked(text: str) -> list[str]:
    """The blocks that have a table in `text`, in order."""
    return [name for found in TABLE.finditer(text) for name in found[2].split()]


def named_blocks(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every block of keys by its name."""
    inner = {_name(name): block for name, block in schema["$defs"].items() if "properties" in block}
    return {"Preset": schema} | inner


def _name(definition: str) -> str:
    """`eulerstack__language__ffns__mlp__Block`, as pydantic tells classes of one name apart, is `ffns.mlp`."""
    return definition.removeprefix("eulerstack__language__").removesuffix("__Block").replace("__", ".")


def table(names: list[str], schema: dict[str, Any]) -> str:
    """The table of these blocks. KeyError for the name of no block."""
    blocks, left, rows = named_blocks(schema), list(names), []
    while left:
        name = left.pop(0)
        rows += _rows(blocks[name], "", left, schema)
    return HEADER + "".join(rows)


def _rows(block: dict[str, Any], prefix: str, left: list[str], schema: dict[str, Any]) -> Iterator[str]:
    """The rows of one block, and of those in `left` that lie in it, which are taken from there."""
    for key, node in block["properties"].items():
        yield _row(prefix + key, node, key in block.get("required", ()), schema)
        for suffix, name in _within(node):
            if name in left:
                left.remove(name)
                yield from _rows(named_blocks(schema)[name], f"{prefix}{key}{suffix}.", left, schema)


def _within(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The blocks that may stand at a node, in a list `[]`, by name."""
    if "$ref" in node:
        yield "", _name(node["$ref"].rpartition("/")[2])
    for option in node.get("anyOf", ()):
        yield from _within(option)
    if "items" in node:
        yield from ((f"[]{suffix}", name) for suffix, name in _within(node["items"]))


def _row(key: str, node: dict[str, Any], required: bool, schema: dict[str, Any]) -> str:
    name = f"`{key}`" + (" **ext**" if node.get("ext") else "")
    cells = (name, *described(node, required, schema))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def described(node: dict[str, Any], required: bool, schema: dict[str, Any]) -> tuple[str, str, str]:
    """The value, default and meaning of a key in words."""
    meaning, _, derived = node.get("description", "").partition(DERIVED)
    return _value(node, schema), "required" if required else derived or _default(node), meaning


def _default(node: dict[str, Any]) -> str:
    """A default in words; null is "none", a block the type it has, or "its defaults"."""
    value = node.get("default")
    if isinstance(value, dict):
        return f"`{value['type']}`" if value.get("type") else "its defaults"
    if value is None or value in ([], {}):
        return "none"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value).replace('e-0', 'e-')}`"


def _value(node: dict[str, Any], schema: dict[str, Any]) -> str:
    """What may stand there."""
    if "$ref" in node:
        keys = list(_keys(node, schema))
        return f"`{{{', '.join(keys if len(keys) <= SHOWN else [*keys[: SHOWN - 1], '...'])}}}`"
    if options := node.get("anyOf") or node.get("oneOf"):
        words = [_kind(option, schema) for option in options if "pattern" not in option]
        return " or ".join(word for word in dict.fromkeys(words) if word != "null")
    if "const" in node or "enum" in node:
        return ", ".join(f"`{word}`" for word in node.get("enum", [node.get("const")]))
    if node.get("type") in ("integer", "number"):
        return _number(node)
    if node.get("type") == "array":
        return f"list of {_items(node, schema)}"
    if node.get("type") == "object":
        return f"name -> {_value(node.get('additionalProperties') or {}, schema) or 'any'}"
    return WORDS.get(node.get("type", ""), "")


def _items(node: dict[str, Any], schema: dict[str, Any]) -> str:
    each = node.get("prefixItems") or [node.get("items", {})]
    return " and ".join(dict.fromkeys(_value(item, schema) for item in each))


def _number(node: dict[str, Any]) -> str:
    if "minimum" in node and node["minimum"] == node.get("maximum"):
        return f"`{node['minimum']}`"
    word = "int" if node["type"] == "integer" else "number"
    bounds = [f"{sign} {node[key]:g}" for key, sign in BOUNDS.items() if key in node]
    even = f", a multiple of {node['multipleOf']}" if "multipleOf" in node else ""
    return f"{word} {', '.join(bounds)}".rstrip() + even


def _kind(node: dict[str, Any], schema: dict[str, Any]) -> str:
    """One of several things that may stand in a place: a block is named by its type, if that says which it is."""
    kind = _keys(node, schema).get("type", {}).get("const")
    return f"`{kind}`" if kind else _value(node, schema)


def _keys(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The keys of the block that a node refers to."""
    return schema["$defs"][node["$ref"].rpartition("/")[2]].get("properties", {}) if "$ref" in node else {}

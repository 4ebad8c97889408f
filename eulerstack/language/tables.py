"""The tables of docs/language.md, from the JSON Schema: every block of the language with its keys, values and defaults.

A table stands between `<!-- keys: <Block> -->` and `<!-- end -->`, where Block is the name of its class (`Attention`; a
kind of mixer or FFN `mixers.attention`), or `Preset` for the document. `rewritten` puts there what the schema says.
"""

import json
import re
from typing import Any

TABLE = re.compile(r"(<!-- keys: ([\w.]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
HEADER = "| key | value | default | meaning |\n|---|---|---|---|\n"
WORDS = {"string": "text", "boolean": "true, false", "null": "null"}
BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


def rewritten(text: str, schema: dict[str, Any]) -> str:
    """`text` with every marked table as the schema has it. KeyError for the name of no block."""
    blocks = named_blocks(schema)
    return TABLE.sub(lambda found: f"{found[1]}\n{table(blocks[found[2]], schema)}\n{found[4]}", text)


def marked(text: str) -> list[str]:
    """The blocks that have a table in `text`, in order."""
    return [found[2] for found in TABLE.finditer(text)]


def named_blocks(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every block of keys by its name."""
    inner = {_name(name): block for name, block in schema["$defs"].items() if "properties" in block}
    return {"Preset": schema} | inner


def _name(definition: str) -> str:
    """`eulerstack__language__ffns__mlp__Block`, as pydantic tells classes of one name apart, is `ffns.mlp`."""
    return definition.removeprefix("eulerstack__language__").removesuffix("__Block").replace("__", ".")


def table(block: dict[str, Any], schema: dict[str, Any]) -> str:
    """The rows of one block."""
    required = block.get("required", ())
    rows = (_row(key, node, key in required, schema) for key, node in block["properties"].items())
    return HEADER + "".join(rows)


def _row(key: str, node: dict[str, Any], required: bool, schema: dict[str, Any]) -> str:
    name = f"`{key}`" + (" **ext**" if node.get("ext") else "")
    default = "required" if required else _default(node)
    cells = (name, _value(node, schema), default, node.get("description", ""))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _default(node: dict[str, Any]) -> str:
    """A default in words; null is "none", a block of nothing but defaults "its own"."""
    value = node.get("default")
    if isinstance(value, dict):
        return "its own" if not value.get("type") else f"`{value['type']}`"
    if value is None or value == []:
        return "none"
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def _value(node: dict[str, Any], schema: dict[str, Any]) -> str:
    """What may stand there."""
    if "$ref" in node:
        return f"`{{{', '.join(_keys(node, schema))}}}`"
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

"""The JSON Schema of a preset, for editors: `eulerstack schema --json`.

It comes from the blocks themselves. Three things are added that happen before blocks are checked: a number may be a
`${...}` string, a block of defaults may be left empty, and every mapping may carry reserved keys.
"""

from typing import Any

from pydantic import TypeAdapter

from eulerstack.language.schema import Spec
from eulerstack.language.template import MIXERS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
EXPRESSION = {"type": "string", "pattern": r"^\s*\$\{.*\}\s*$"}
# What is said of a value whatever its type: it stays outside of the alternatives.
ABOUT = ("description", "default", "ext")
RESERVED = {r"^(experimental|future|vendor\.[^.]+)\..+": {"description": "reserved: kept, with a warning"}}


def json_schema() -> dict[str, Any]:
    """The schema of the whole document, JSON Schema draft 2020-12."""
    schema = TypeAdapter(Spec).json_schema()
    branches = schema["$defs"]["Branched"]["properties"]["branches"]
    branches["additionalProperties"] = {"oneOf": _branch_options(schema)}
    schema["properties"]["let"]["additionalProperties"] = {"type": "number"}
    head = {"$schema": DRAFT, "title": "EulerStack preset", "description": "A decoder, schema_version 1"}
    return head | {key: value for key, value in _widened(schema).items() if key not in head}


def _branch_options(schema: dict[str, Any]) -> list[dict[str, str]]:
    """The references of the mixers that may stand inside a branched mixer."""
    mapping = schema["$defs"]["Template"]["properties"]["mixer"]["discriminator"]["mapping"]
    return [{"$ref": mapping[name]} for name in MIXERS if name != "branched"]


def _widened(node: Any) -> Any:
    if isinstance(node, list):
        return [_widened(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _widened(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    if node.get("type") in ("integer", "number"):
        about = {key: node.pop(key) for key in ABOUT if key in node}
        return {"anyOf": [node, EXPRESSION], **about}
    if "default" in node and ("$ref" in node or node.get("type") == "array"):
        about = {key: node.pop(key) for key in ABOUT if key in node}
        return {"anyOf": [node, {"type": "null"}], **about}
    if node.get("type") == "object" and "additionalProperties" in node:
        node["patternProperties"] = RESERVED
    return node

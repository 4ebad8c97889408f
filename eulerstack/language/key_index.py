"""Every key of the language with its place, value and default, by name: the index at the end of a tutorial.

It stands between `<!-- index: PAGE -->` and `<!-- end -->`, where PAGE is the reference as seen from that file.
"""

import re
from collections.abc import Iterator
from typing import Any

from eulerstack.language.tables import described
from eulerstack.language.where import see

INDEX = re.compile(r"(<!-- index: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
HEADER = "| key | stands in | value | default |\n|---|---|---|---|\n"
TEMPLATE = "layer_templates.<name>."


def rewritten(text: str, schema: dict[str, Any]) -> str:
    """`text` with the index as the schema has it, where there is one."""
    return INDEX.sub(lambda found: f"{found[1]}\n{index(found[2], schema)}\n{found[4]}", text)


def index(page: str, schema: dict[str, Any]) -> str:
    """The index, each key a link to its section of `page`."""
    rows = []
    for path, block in blocks(schema):
        section = see(tuple(re.split(r"[. ]", path.replace("[]", ""))) if path else ()).partition("#")[2]
        place = path.removeprefix(TEMPLATE) if path else "the top"
        for key, node in block["properties"].items():
            value, default, _ = described(node, key in block.get("required", ()), schema)
            cells = (f"[`{key}`]({page}#{section})", f"`{place}`" if path else place, value, default)
            row = f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
            rows.append((key, path, row))
    return HEADER + "".join(row for *_, row in sorted(rows))


def blocks(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every block of keys, under the first of the places where it may stand.

    Places nearer to the top go first, so that a mixer is found where a template has it and not inside another mixer.
    """
    seen: set[str] = set()
    places = [("", schema)]
    for path, node in places:
        if name := node.get("$ref", "").rpartition("/")[2]:
            if name not in seen:
                seen.add(name)
                places.append((path, schema["$defs"][name]))
            continue
        if keys := node.get("properties"):
            kind = keys.get("type", {}).get("const")
            yield (f"{path} {kind}" if kind else path), node
        places += _below(path, node)


def _below(path: str, node: dict) -> Iterator[tuple[str, dict]]:
    """What stands inside a node: its keys, the values of names that users choose, the items of a list, its variants."""
    for key, value in node.get("properties", {}).items():
        yield f"{path}.{key}".lstrip("."), value
    if isinstance(values := node.get("additionalProperties"), dict):
        yield f"{path}.<name>", values
    if isinstance(items := node.get("items"), dict):
        yield f"{path}[]", items
    for variant in (*node.get("oneOf", ()), *node.get("anyOf", ())):
        yield path, variant

"""`eulerstack schema`: the JSON Schema of a preset, for editors, and the tables of its reference."""

import json
from collections.abc import Iterator
from pathlib import Path

import click


@click.command("schema")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON Schema (draft 2020-12).")
@click.option(
    "--tables",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Print this Markdown file with its tables of keys as they are now.",
)
def command(as_json: bool, tables: Path | None) -> None:
    """Print the language: its keys by block, the JSON Schema, or tables for a reference."""
    from eulerstack.language.schema_json import json_schema

    if as_json and tables:
        raise click.UsageError("give one of --json, --tables")
    schema = json_schema()
    if tables is not None:
        from eulerstack.language.tables import rewritten

        click.echo(rewritten(tables.read_text(encoding="utf-8"), schema), nl=False)
        return
    if as_json:
        click.echo(json.dumps(schema, indent=1, sort_keys=True))
        return
    for path, keys in _blocks(schema):
        click.echo(f"{path or 'preset'}: {', '.join(keys)}")


def _blocks(schema: dict) -> Iterator[tuple[str, list[str]]]:
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
            yield (f"{path} {kind}" if kind else path), list(keys)
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

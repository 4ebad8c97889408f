"""`eulerstack schema`: the JSON Schema of a preset, for editors."""

import json

import click


@click.command("schema")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON Schema (draft 2020-12).")
def command(as_json: bool) -> None:
    """Print the language: its keys by block, or the JSON Schema."""
    from eulerstack.language.schema_json import json_schema

    schema = json_schema()
    if as_json:
        click.echo(json.dumps(schema, indent=1, sort_keys=True))
        return
    for name, definition in sorted(schema["$defs"].items()):
        if keys := definition.get("properties"):
            click.echo(f"{name}: {', '.join(keys)}")

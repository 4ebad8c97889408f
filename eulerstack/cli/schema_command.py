"""`eulerstack schema`: the JSON Schema of a preset, for editors, and the tables of its reference."""

import json
from pathlib import Path

import click


@click.command("schema")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON Schema (draft 2020-12).")
@click.option(
    "--tables",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Print this Markdown file with its tables and its index of keys as they are now.",
)
def command(as_json: bool, tables: Path | None) -> None:
    """Print the language: its keys by block, the JSON Schema, or tables for a reference."""
    from eulerstack.language import key_index
    from eulerstack.language.schema_json import json_schema

    if as_json and tables:
        raise click.UsageError("give one of --json, --tables")
    schema = json_schema()
    if tables is not None:
        from eulerstack.language.tables import rewritten

        click.echo(key_index.rewritten(rewritten(tables.read_text(encoding="utf-8"), schema), schema), nl=False)
        return
    if as_json:
        click.echo(json.dumps(schema, indent=1, sort_keys=True))
        return
    for path, block in key_index.blocks(schema):
        click.echo(f"{path or 'preset'}: {', '.join(block['properties'])}")

"""`eulerstack new`: a preset of one's own that begins as a copy of another."""

import re
from contextlib import suppress
from pathlib import Path

import click

from eulerstack.atomic import whole
from eulerstack.cli.init_command import PRESET, SEE
from eulerstack.cli.options import PresetType
from eulerstack.errors import ExportError, ParseError, ValidationError
from eulerstack.paths import SUFFIXES, workspace

NAME = re.compile(r"\w[\w.-]{0,99}")
HEAD = re.compile(r"(#[^\n]*\n)*")
SCHEMAS = ("docs/schema.json", "schema.json")


@click.command("new")
@click.argument("name")
@click.option(
    "--from", "origin", type=PresetType(), metavar="NAME|FILE", help="What it begins as; by default that of `init`."
)
def command(name: str, origin: Path | None) -> None:
    """Write presets/NAME.yml in the workspace: a preset to change, begun as another."""
    if not NAME.fullmatch(name) or name.endswith(SUFFIXES):
        what = f"{name!r} is no name for a preset"
        raise ValidationError.at("new", what, "use letters, digits, `_`, `-` and `.`, and leave the suffix out", SEE)
    path = workspace() / "presets" / f"{name}.yml"
    for taken in (path.with_name(f"{name}{suffix}") for suffix in SUFFIXES):
        if taken.exists():
            raise ExportError.at(taken, "exists already", "choose another name", SEE)
    text = _text(name, origin)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise ExportError.at(path, what, "make it possible to write there", SEE) from error
    check = f" && doit cpu_sanity:{name}" if (workspace() / "dodo.py").exists() else ""
    click.echo(f"{path}: begun as {_called(origin)}. Next: change it, then eulerstack validate {name}{check}")


def _text(name: str, origin: Path | None) -> str:
    """The preset begun with, under another name and head."""
    if origin is None:
        text = PRESET
    else:
        from eulerstack.language.load import load_preset

        load_preset(origin)  # who begins with a mistake would look for it in what was changed
        text = origin.read_bytes().decode("utf-8-sig")
    return _head(origin) + HEAD.sub("", _renamed(text, name, str(origin)), count=1)


def _head(origin: Path | None) -> str:
    """The schema for an editor, and what the preset began as."""
    found = [name for name in SCHEMAS if (workspace() / name).exists()]
    schema = [f"# yaml-language-server: $schema=../{found[0]}", "#"] if found else []
    return "\n".join([*schema, f"# Begun as {_called(origin)}.", ""])


def _called(origin: Path | None) -> str:
    return origin.stem if origin else "the starter of `eulerstack init`"


def _renamed(text: str, name: str, path: str) -> str:
    """The same text with another `model.name`; ExportError where its place does not say the name in so many words."""
    from yaml import SafeLoader, compose

    from eulerstack.language.source import parse

    node = compose(text, SafeLoader)
    for key in ("model", "name"):
        node = next((value for known, value in node.value if known.value == key), node)
    plain = parse(f"model: {{name: {name}}}", path).tree == {"model": {"name": name}}
    renamed = text[: node.start_mark.index] + (name if plain else repr(name)) + text[node.end_mark.index :]
    wanted = parse(text, path).tree
    wanted["model"] = wanted["model"] | {"name": name}
    with suppress(ParseError):  # an alias whose anchor went
        if parse(renamed, path).tree == wanted:
            return renamed
    raise ExportError.at(path, "its model.name is an alias or has an anchor", "write it out under model", SEE)

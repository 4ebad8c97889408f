"""What several commands share: how a preset is named, how warnings are shown."""

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path

import click

from eulerstack.paths import find_preset

ROUND = 10_000  # from here on a number is rounded


class PresetType(click.ParamType):
    """A preset by name (workspace, then catalogue) or by path."""

    name = "preset"

    def convert(self, value, param, ctx) -> Path:
        return value if isinstance(value, Path) else find_preset(value)


class DirectoryPath(click.Path):
    """A directory to write; "" is no name for one."""

    def __init__(self):
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value, param, ctx) -> Path:
        if not str(value):
            self.fail("an empty name", param, ctx)
        return super().convert(value, param, ctx)


def preset_option(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command its `preset`: an argument, or the option --preset."""

    @wraps(command)
    def given(named: Path | None, preset: Path | None, **others: object) -> None:
        if (named is None) == (preset is None):
            raise click.UsageError("give one preset, as NAME|FILE or with --preset")
        command(preset=named or preset, **others)

    option = click.option("--preset", "-p", type=PresetType(), metavar="NAME|FILE", help="The same as an option.")
    return click.argument("named", type=PresetType(), required=False, metavar="NAME|FILE")(option(given))


length_option = click.option(
    "--length", type=click.IntRange(min=1), help="Tokens of context for FLOPs and cache; max_seq_len by default."
)


def show_warnings(warnings: Iterable[object]) -> None:
    """Each warning on stderr, three lines."""
    for warning in warnings:
        click.echo(str(warning), err=True)


def count(n: float, *, aligned: bool = False) -> str:
    """A number as people say it: 1.19 B, 100.4 M, 1,536; for a column, `aligned`, with four digits: 1.190 B."""
    if abs(n) < ROUND and not aligned:
        return f"{round(n):,}"
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(n) >= size:
            digits = f"{n / size:#.4g}" if aligned else f"{n / size:.4g}"
            return f"{digits.rstrip('.')} {unit}"
    return str(round(n))


def size(n: float) -> str:
    """Bytes in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} TiB"

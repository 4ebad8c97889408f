"""`eulerstack presets`: what is in the workspace and in the catalogue."""

from pathlib import Path

import click

from eulerstack.cli.options import PresetType, count


@click.group("presets")
def command() -> None:
    """List presets, or print one."""


@command.command("list")
def list_presets() -> None:
    """Every preset with its layers, mixers and parameters."""
    from eulerstack.errors import EulerStackError
    from eulerstack.paths import all_presets

    click.echo(f"{'preset':<34}{'layers':>7}  {'params':>9}  {'active':>9}  mixers")
    broken = 0
    for path in all_presets():
        try:
            click.echo(_row(path))
        except EulerStackError as error:
            broken += 1
            click.echo(f"{path.stem:<34}{'':>7}  {error.problems[0].category}: see eulerstack validate -p {path.stem}")
    if broken:
        raise SystemExit(1)


@command.command("show")
@click.argument("preset", type=PresetType(), metavar="NAME|FILE")
def show_preset(preset: Path) -> None:
    """Print the file of a preset."""
    click.echo(preset.read_bytes(), nl=False)


def _row(path: Path) -> str:
    from eulerstack.compiler.judge import judge

    judged = judge(path)
    mixers = sorted({getattr(getattr(x.mixer, "mamba", None), "variant", x.mixer.type) for x in judged.ir.layers})
    if judged.costs is None:
        figures = f"{'':>9}  {'not built':>9}"
    else:
        figures = f"{count(judged.costs.total, aligned=True):>9}  {count(judged.costs.active, aligned=True):>9}"
    return f"{path.stem:<34}{len(judged.ir.layers):>7}  {figures}  {', '.join(mixers)}"

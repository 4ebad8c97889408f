"""`eulerstack validate`: is the preset right, every error at once."""

from pathlib import Path

import click

from eulerstack.cli.options import count, preset_option, show_warnings


@click.command("validate")
@preset_option
@click.option("--report", is_flag=True, help="Say what was found: layers, parameters, every warning by rule.")
@click.option("--disable", multiple=True, metavar="RULE", help="Switch off a realism rule by its name.")
def command(preset: Path, report: bool, disable: tuple[str, ...]) -> None:
    """Check a preset without building anything."""
    from eulerstack.compiler.judge import judge

    try:
        judged = judge(preset, disabled=frozenset(disable))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    found = (*_misnamed(preset, judged), *judged.warnings)
    show_warnings(found)
    if report:
        _report(preset, judged)
    warnings = len(found)
    click.echo(f"{preset}: valid" + (f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""))


def _misnamed(preset: Path, judged) -> tuple:
    """A warning where the file is not called as its model, so that one thing has two names."""
    name = judged.ir.model.name
    if name == preset.stem:
        return ()
    what = f"{name!r}, and the file is {preset.name}"
    fix = "give both one name; tasks and exports are called as the file"
    return (judged.checked.source.problem("Warning", ("model", "name"), what, fix),)


def _report(preset: Path, judged) -> None:
    ir, costs = judged.ir, judged.costs
    templates = sorted({layer.template for layer in ir.layers})
    click.echo(f"model       {ir.model.name}")
    many = f"{len(templates)} template{'s' * (len(templates) > 1)}"
    click.echo(f"layers      {len(ir.layers)} of {many}: {', '.join(templates)}")
    if costs is not None:
        click.echo(f"parameters  {count(costs.total)}, {count(costs.active)} active")
        if ir.model.target_params:
            click.echo(
                f"target      {count(ir.model.target_params)}, off by {costs.total / ir.model.target_params - 1:+.1%}"
            )
    for problem in judged.unbuilt:
        click.echo(f"not built   {problem.where}: {problem.what}")

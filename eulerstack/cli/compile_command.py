"""`eulerstack compile`: a preset to `config.json`, or to a whole Hugging Face directory."""

import json
from pathlib import Path

import click

from eulerstack.cli.options import count, preset_option, show_warnings, size


@click.command("compile")
@preset_option
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Write the compiled JSON here.")
@click.option("--output-dir", "-d", type=click.Path(path_type=Path), help="Write a Hugging Face directory here.")
@click.option("--print-config", is_flag=True, help="Print the payload of config.json.")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@click.option("--validate-only", is_flag=True, help="Only say whether it compiles.")
def command(
    preset: Path,
    output: Path | None,
    output_dir: Path | None,
    print_config: bool,
    dry_run: bool,
    validate_only: bool,
) -> None:
    """Compile a preset. Exactly one of the options says what becomes of it."""
    chosen = [bool(output), bool(output_dir), print_config, validate_only]
    if sum(chosen) != 1 and not (dry_run and sum(chosen) == 0):
        raise click.UsageError("give one of --output, --output-dir, --print-config, --validate-only")
    from eulerstack.compiler.compile import compile_ir
    from eulerstack.compiler.judge import judge
    from eulerstack.errors import CompileError

    judged = judge(preset)
    show_warnings(judged.warnings)
    if judged.unbuilt:
        raise CompileError(judged.unbuilt)
    compiled = compile_ir(judged.ir, name=preset.stem)
    if dry_run:
        _foretell(compiled, judged, output or output_dir)
    elif validate_only:
        click.echo(f"{preset}: compiles, {count(judged.costs.total)} parameters")
    elif print_config:
        click.echo(json.dumps(compiled.config, indent=1, sort_keys=True))
    elif output:
        _write(output, compiled.to_json())
        click.echo(f"{output}: {count(judged.costs.total)} parameters")
    else:
        _export(judged.ir, preset.stem, output_dir)


def _foretell(compiled, judged, target: Path | None) -> None:
    click.echo(f"would write {target or 'nothing'}: {count(judged.costs.total)} parameters")
    click.echo(f"  weights  {size(judged.costs.weight_bytes)}")
    for name in sorted([compiled.entry, *compiled.files]):
        click.echo(f"  {name}")


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    from eulerstack.export.directory import write_atomically

    write_atomically(path, text.encode())


def _export(ir, name: str, target: Path) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from eulerstack.export.model import export_model

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=None)
        exported = export_model(
            ir, name, target, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if exported.tokenizer.stand_in:
        click.echo(f"tokenizer: {exported.tokenizer.source}", err=True)
    click.echo(f"{target}: {count(exported.parameters)} parameters, {size(exported.bytes)}")

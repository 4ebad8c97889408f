"""`eulerstack compile`: a preset to `config.json`, or to a whole Hugging Face directory."""

import json
from pathlib import Path

import click

from eulerstack.cli.options import DirectoryPath, count, preset_option, show_warnings, size

SEE = "docs/tutorials/04_compile_and_explain.md#compile-what-is-written"


@click.command("compile")
@preset_option
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Write the compiled JSON here.")
@click.option("--output-dir", "-d", type=DirectoryPath(), help="Write a Hugging Face directory here.")
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
    """Compile a preset. One option says what becomes of it; --dry-run may stand beside it, or alone."""
    chosen = sum((output is not None, output_dir is not None, print_config, validate_only))
    if chosen > 1 or not (chosen or dry_run):
        raise click.UsageError("give one of --output, --output-dir, --print-config, --validate-only, --dry-run")
    from eulerstack.compiler.compile import compile_ir
    from eulerstack.compiler.judge import judge
    from eulerstack.compiler.runtime import refuse

    judged = judge(preset)
    show_warnings(judged.warnings)
    refuse(judged.ir, judged.checked)
    compiled = compile_ir(judged.ir, name=preset.stem)
    if output is not None:
        _check_output(output)
    if dry_run:
        _foretell(compiled, judged, output, output_dir)
    elif validate_only:
        click.echo(f"{preset}: compiles, {count(judged.costs.total)} parameters")
    elif print_config:
        click.echo(json.dumps(compiled.config, indent=1, sort_keys=True))
    elif output is not None:
        _write(output, compiled.to_json())
        click.echo(f"{output}: {count(judged.costs.total)} parameters")
    else:
        _export(judged.ir, preset.stem, output_dir)


def _foretell(compiled, judged, output: Path | None, output_dir: Path | None) -> None:
    if output_dir is not None:
        from eulerstack.export.directory import check_free

        check_free(output_dir, replace=False)
    click.echo(f"would write {output or output_dir or 'nothing, as no output is named'}")
    click.echo(f"  {count(judged.costs.total)} parameters, {size(judged.costs.weight_bytes)} of weights")
    click.echo(f"  code: {', '.join([f'{compiled.entry}.py', *compiled.files])}")


def _check_output(path: Path) -> None:
    """ExportError unless `path` is free or holds what an earlier call wrote."""
    if path.exists() and not (path.is_file() and _is_ours(path)):
        from eulerstack.errors import ExportError

        raise ExportError.at(path, "is a file of something else", "choose another file", SEE)


def _is_ours(path: Path) -> bool:
    try:
        return "ir_digest" in json.loads(path.read_bytes())
    except (ValueError, TypeError):
        return False


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    from eulerstack.export.files import explained, write_atomically

    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise explained(path, error) from error


def _export(ir, name: str, target: Path) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from eulerstack.export.model import export_model

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        exported = export_model(
            ir, name, target, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if exported.tokenizer.stand_in:
        click.echo(f"tokenizer: {exported.tokenizer.source}", err=True)
    click.echo(f"{target}: {count(exported.parameters)} parameters, {size(exported.bytes)}")

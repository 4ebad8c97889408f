"""`eulerstack presets`: what is in the workspace and in the catalogue."""

import json
import shlex
from pathlib import Path
from typing import Any

import click

from eulerstack.cli.brief import USUAL
from eulerstack.cli.options import PresetType, count, size

HEAD = ("layers", "params", "active", "KV at 4 K ", "target")
ENDS_BEFORE = f"* at {USUAL:,} tokens like the others, though it ends before"


@click.group("presets")
def command() -> None:
    """List presets, or print one."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_presets(as_json: bool) -> None:
    """Every preset by level: layers, parameters, active ones, KV cache, parameters over the target, mixers.

    One that is broken says so in its row, and the status is 1.
    """
    rows = _rows()
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        click.echo("\n".join(_lines(rows)))
    if any("error" in row for row in rows):
        raise SystemExit(1)


@command.command("show")
@click.argument("preset", type=PresetType(), metavar="NAME|FILE")
def show_preset(preset: Path) -> None:
    """Print the file of a preset."""
    click.echo(preset.read_bytes(), nl=False)


def _rows() -> list[dict[str, Any]]:
    """All presets as plain values, in the order of their groups."""
    from eulerstack.cli.levels import grouped
    from eulerstack.errors import EulerStackError
    from eulerstack.paths import all_presets, catalogue_dir, presets_dir

    own = presets_dir()
    rows = []
    for group, paths in grouped(all_presets(), None if own == catalogue_dir() else own).items():
        for path in paths:
            row = {"name": path.stem, "group": group}
            try:
                rows.append(row | _figures(path))
            except EulerStackError as error:
                rows.append(row | {"error": error.problems[0].category})
    return rows


def _figures(path: Path) -> dict[str, Any]:
    """What is known of one preset; nothing of its costs while something in it is not built yet."""
    from eulerstack.cli.words import mixer_name
    from eulerstack.compiler.judge import judge

    judged = judge(path, length=USUAL)
    ir, costs, target = judged.ir, judged.costs, judged.ir.model.target_params
    mixers = {mixer_name(layer.mixer) for layer in ir.layers}
    return {
        "layers": len(ir.layers),
        "mixers": sorted(mixers - {"none"}) or ["none"],
        "params": costs and costs.total,
        "active": costs and costs.active,
        "kv_cache_bytes": costs and costs.kv_cache_bytes,
        "target_ratio": costs and target and costs.total / target,
        "max_seq_len": ir.model.max_seq_len,
    }


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    from eulerstack.cli.tables import columns, labelled
    from eulerstack.cli.words import short

    table = columns([("preset", *HEAD), *((f"  {short(row['name'], 34)}", *_cells(row)) for row in rows)])
    lines, group = [f"{table[0]}  mixers"], None
    for row, line in zip(rows, table[1:], strict=True):
        if row["group"] != group:
            lines.append(group := row["group"])
        if "error" in row:
            lines.append(f"{line}  {row['error']}: see eulerstack validate -p {_in_a_shell(row['name'])}")
        else:
            lines += labelled("", line, row["mixers"], len(table[0]) + 2)
    ends = any(row.get("max_seq_len", USUAL) < USUAL for row in rows)
    return [*lines, *([ENDS_BEFORE] if ends else [])]


def _in_a_shell(name: str) -> str:
    """As a shell takes it; on one line though a file name may have several."""
    return shlex.quote(name) if name.isprintable() else repr(name)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """The figures of a row, all of a column with the same number of digits."""
    if "error" in row:
        return ("",) * len(HEAD)
    if row["params"] is None:
        return f"{row['layers']:,}", "not built", "", "", ""
    cache = f"{size(row['kv_cache_bytes'])}{'*' if row['max_seq_len'] < USUAL else ' '}"
    ratio = f"{row['target_ratio']:.2f}" if row["target_ratio"] else "-"
    return f"{row['layers']:,}", *(count(row[key], aligned=True) for key in ("params", "active")), cache, ratio

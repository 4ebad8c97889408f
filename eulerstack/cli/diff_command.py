"""`eulerstack diff`: what differs between two presets, in structure and in costs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from eulerstack.cli.brief import USUAL
from eulerstack.cli.options import PresetType, count, show_warnings, size

NAME = "NAME|FILE"


@click.command("diff")
@click.argument("a", type=PresetType(), metavar=f"{NAME} ")
@click.argument("b", type=PresetType(), metavar=NAME)
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def command(a: Path, b: Path, as_json: bool) -> None:
    """Print what differs between two presets, every default written out: structure and costs.

    The status is 0 whether or not they differ. Names of models make no difference.
    """
    one, other = (_judged(path) for path in (a, b))
    compared = _compare(one.ir, other.ir)
    figures = [Figure(*row) for row in _figures(one, other)]
    if as_json:
        costs = {figure.key: {"a": figure.a, "b": figure.b, "ratio": figure.ratio} for figure in figures}
        names = {"a": one.ir.model.name, "b": other.ir.model.name}
        click.echo(json.dumps(names | compared.to_dict() | {"costs": costs}, indent=1))
        return
    for judged in (one, other):
        show_warnings(judged.warnings)
    title = f"A  {one.ir.model.name}\nB  {other.ir.model.name}\n"
    click.echo("\n".join([title, *compared.lines(), "", *_table(figures), *_beyond(one.ir, other.ir)]))


@dataclass(frozen=True)
class Figure:
    """One cost on both sides; `shown` writes it down."""

    key: str
    label: str
    shown: Any
    a: int
    b: int

    @property
    def ratio(self) -> float | None:
        """B over A; None where A is nothing."""
        return self.b / self.a if self.a else None


def _judged(path: Path):
    from eulerstack.compiler.judge import judge
    from eulerstack.errors import CompileError

    judged = judge(path, length=USUAL)
    if judged.costs is None:
        raise CompileError(judged.unbuilt)
    return judged


def _compare(a, b):
    from eulerstack.cli.differences import compare

    return compare(a, b)


def _figures(one, other):
    """Rows of the table of costs: FLOPs at the usual length, the cache there and at each side's own limit."""
    from eulerstack.ir.costs import costs

    pairs = [(judged.costs, costs(judged.ir)) for judged in (one, other)]
    yield "layers", "layers", "{:,}".format, *(len(judged.ir.layers) for judged in (one, other))
    yield "params", "parameters", count, *(usual.total for usual, _ in pairs)
    yield "active", "active", count, *(usual.active for usual, _ in pairs)
    yield "flops_per_token", f"FLOP/token at {USUAL:,}", count, *(usual.flops_per_token for usual, _ in pairs)
    yield "kv_cache_bytes", f"KV cache at {USUAL:,}", size, *(usual.kv_cache_bytes for usual, _ in pairs)
    yield "max_seq_len", "limit, in tokens", "{:,}".format, *(judged.ir.model.max_seq_len for judged in (one, other))
    yield "kv_cache_bytes_at_limit", "KV cache at the limit", size, *(limit.kv_cache_bytes for _, limit in pairs)
    yield "state_bytes", "state", size, *(usual.state_bytes for usual, _ in pairs)


def _table(figures: list[Figure]) -> list[str]:
    from eulerstack.cli.tables import columns

    ratios = ["-" if figure.ratio is None else f"{figure.ratio:.3g}" for figure in figures]
    rows = [(f.label, f.shown(f.a), f.shown(f.b), ratio) for f, ratio in zip(figures, ratios, strict=True)]
    return columns([("costs", "A", "B", "B / A"), *rows])


def _beyond(a, b) -> list[str]:
    short = [name for name, ir in (("A", a), ("B", b)) if ir.model.max_seq_len < USUAL]
    if not short:
        return []
    end = "both A and B end" if len(short) > 1 else f"{short[0]} ends"
    return [f"{end} before {USUAL:,} tokens: figures at that length only compare"]

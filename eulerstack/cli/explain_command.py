"""`eulerstack explain`: what a preset builds, costs and needs, without building it."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from eulerstack.cli.brief import brief
from eulerstack.cli.options import count, length_option, preset_option, show_warnings, size


@click.command("explain")
@preset_option
@length_option
@click.option("--batch", type=click.IntRange(min=1), default=1, help="Sequences at once, for memory; 1 by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--brief", "in_brief", is_flag=True, help="Print one sentence: the numbers at the head of a preset file.")
def command(preset: Path, length: int | None, batch: int, as_json: bool, in_brief: bool) -> None:
    """Draw a preset, and print its sizes, its costs by kind of layer, and the memory it needs."""
    from eulerstack.cli.diagram import Diagram
    from eulerstack.cli.kinds import kinds_of
    from eulerstack.compiler.judge import judge
    from eulerstack.errors import CompileError

    judged = judge(preset, length=length)
    if judged.costs is None:
        raise CompileError(judged.unbuilt)
    if in_brief:
        click.echo(brief(judged.ir))
        return
    diagram = Diagram(judged.ir, kinds_of(judged.ir))
    if as_json:
        click.echo(json.dumps(_figures(diagram, judged.costs, batch), indent=1))
        return
    show_warnings(judged.warnings)
    click.echo("\n".join(_described(diagram, judged.costs, batch)))


def _figures(diagram, costs, batch: int) -> dict:
    from eulerstack.cli.ledger import ledger
    from eulerstack.cli.needs import serving, training

    ir = diagram.ir
    return {
        "name": ir.model.name,
        "layers": len(ir.layers),
        "params": {"total": costs.total, "active": costs.active, "embedding": costs.embedding},
        "flops_per_token": costs.flops_per_token,
        "kv_cache_bytes": costs.kv_cache_bytes,
        "state_bytes": costs.state_bytes,
        "length": costs.length,
        "batch": batch,
        "dims": asdict(ir.model),
        "schedule": diagram.tree(),
        "costs": [asdict(row) for row in ledger(ir, diagram.kinds, costs)],
        "training_bytes": training(ir, costs, batch),
        "serving_bytes": serving(costs, batch),
    }


def _described(diagram, costs, batch: int) -> list[str]:
    from eulerstack.cli.layer_diagram import draw_layer
    from eulerstack.cli.words import layers

    ir, m = diagram.ir, diagram.ir.model
    lines = [f"{m.name}: {layers(len(ir.layers))} of {m.d_model}, vocabulary {m.vocab_size:,}, {m.dtype}", ""]
    lines += diagram.lines()
    for kind in diagram.kinds:
        lines += ["", *draw_layer(kind, ir.dims)]
    lines += ["", *_dims(m), "", *_costs(diagram, costs), "", *_totals(m, costs)]
    return [*lines, "", *_memory(ir, costs, batch)]


def _dims(m) -> list[str]:
    from eulerstack.cli.tables import labelled
    from eulerstack.cli.words import said

    names = ("d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "max_seq_len", "norm_eps")
    return labelled("", "dims", [f"{name} {said(getattr(m, name))}" for name in names], 12)


def _costs(diagram, costs) -> list[str]:
    """The table by kind, every column of which sums to its last line."""
    from eulerstack.cli.ledger import ledger, total
    from eulerstack.cli.tables import columns
    from eulerstack.cli.words import short

    rows = ledger(diagram.ir, diagram.kinds, costs)
    rows.append(total(rows, len(diagram.ir.layers)))
    head = ("kind", "count", "params", "share", "active", "FLOP/token", "KV cache", "state")
    table = [
        (
            short(row.name) if row.layers else row.name,
            f"{row.count:,}",
            count(row.params),
            f"{row.params / costs.total:.1%}",
            count(row.active),
            count(row.flops_per_token),
            size(row.kv_cache_bytes),
            size(row.state_bytes),
        )
        for row in rows
    ]
    return columns([head, *table])


def _totals(m, costs) -> list[str]:
    rows = (
        ("parameters", f"{count(costs.total)} ({costs.total:,})"),
        ("active", f"{count(costs.active)} per token"),
        ("embedding", count(costs.embedding)),
        ("weights", f"{size(costs.weight_bytes)} in {m.dtype}"),
        ("forward", f"{costs.flops_per_token / 1e9:.4g} GFLOP per token at {costs.length:,} tokens"),
        ("KV cache", f"{size(costs.kv_cache_bytes)} per sequence at {costs.length:,} tokens"),
        ("state", f"{size(costs.state_bytes)} per sequence"),
    )
    return [f"{name:<11} {value}" for name, value in rows]


def _memory(ir, costs, batch: int) -> list[str]:
    from eulerstack.cli.needs import serving, training

    dtype, many = ir.model.dtype, f"{batch:,} sequence{'s' * (batch > 1)} of {costs.length:,} tokens"
    copies = "two moments" if dtype == "float32" else "a master copy and two moments"
    return [
        f"memory      for {many}",
        *_sum("training", training(ir, costs, batch)),
        f"            Weights and gradients are {dtype}, AdamW has {copies} in",
        "            float32. Inputs of layers are what stays where every layer is recomputed in the backward",
        "            pass; the layer that is being recomputed and the logits come on top.",
        *_sum("serving", serving(costs, batch)),
    ]


def _sum(name: str, needs: dict[str, int]) -> list[str]:
    """What makes a sum, and the sum."""
    from eulerstack.cli.tables import labelled

    terms = [f"{key.replace('_', ' ').replace('kv', 'KV')} {size(n)}" for key, n in needs.items() if key != "total"]
    return labelled("", name, [f"{size(needs['total'])}: {terms[0]}", *terms[1:]], 12)

"""`eulerstack explain`: what a preset builds and costs, without building it."""

import json
from itertools import groupby
from pathlib import Path

import click

from eulerstack.cli.options import count, length_option, preset_option, show_warnings, size


@click.command("explain")
@preset_option
@length_option
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(preset: Path, length: int | None, as_json: bool) -> None:
    """Print the layers of a preset, its parameters, FLOPs and cache."""
    from eulerstack.compiler.judge import judge
    from eulerstack.errors import CompileError

    judged = judge(preset, length=length)
    if judged.costs is None:
        raise CompileError(judged.unbuilt)
    if as_json:
        click.echo(json.dumps(_figures(judged.ir, judged.costs), indent=1))
        return
    show_warnings(judged.warnings)
    _describe(judged.ir, judged.costs)


def _figures(ir, costs) -> dict:
    return {
        "name": ir.model.name,
        "layers": len(ir.layers),
        "params": {"total": costs.total, "active": costs.active, "embedding": costs.embedding},
        "flops_per_token": costs.flops_per_token,
        "kv_cache_bytes": costs.kv_cache_bytes,
        "state_bytes": costs.state_bytes,
    }


def _describe(ir, costs) -> None:
    m = ir.model
    click.echo(f"{m.name}: {len(ir.layers)} layers of {m.d_model}, vocabulary {m.vocab_size:,}, {m.dtype}")
    number = 0
    for (template, kind), run in groupby(ir.layers, key=lambda layer: (layer.template, _kind(layer))):
        repeat = len(list(run))
        last = f"-{number + repeat - 1}" if repeat > 1 else ""
        click.echo(f"  {f'{number}{last}':>7}  {template}: {kind}")
        number += repeat
    rows = (
        ("parameters", f"{count(costs.total)} ({costs.total:,})"),
        ("active", f"{count(costs.active)} per token"),
        ("embedding", count(costs.embedding)),
        ("weights", f"{size(costs.weight_bytes)} in {m.dtype}"),
        ("forward", f"{costs.flops_per_token / 1e9:.4g} GFLOP per token at {costs.length:,} tokens"),
        ("KV cache", f"{size(costs.kv_cache_bytes)} per sequence at {costs.length:,} tokens"),
        ("state", f"{size(costs.state_bytes)} per sequence"),
    )
    for name, value in rows:
        click.echo(f"{name:<11} {value}")


def _kind(layer) -> str:
    """Mixer and FFN in a few words, with what the schedule overrides."""
    mixer = layer.mixer
    words = [getattr(getattr(mixer, "mamba", None), "variant", mixer.type)]
    options = getattr(mixer, "attention", None)
    if options is not None and options.window:
        words.append(f"window {options.window}")
    if options is not None and options.latent_dim:
        words.append(f"latent {options.latent_dim}")
    ffn = layer.ffn.type
    if moe := getattr(layer.ffn, "moe", None):
        shared = f" + {moe.shared_experts} shared" if moe.shared_experts else ""
        ffn = f"moe {moe.top_k} of {moe.experts}{shared}"
    return f"{' '.join(words)}, {ffn}"

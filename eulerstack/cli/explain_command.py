"""`eulerstack explain`: what a preset builds and costs, without building it."""

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import click

from eulerstack.cli.brief import brief
from eulerstack.cli.options import count, length_option, preset_option, show_warnings, size
from eulerstack.language.where import leaves


@click.command("explain")
@preset_option
@length_option
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--brief", "in_brief", is_flag=True, help="Print one sentence: the numbers at the head of a preset file.")
def command(preset: Path, length: int | None, as_json: bool, in_brief: bool) -> None:
    """Print the layers of a preset, its parameters, FLOPs and cache."""
    from eulerstack.compiler.judge import judge
    from eulerstack.errors import CompileError

    judged = judge(preset, length=length)
    if judged.costs is None:
        raise CompileError(judged.unbuilt)
    if in_brief:
        click.echo(brief(judged.ir))
        return
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
    first = {layer.template: layer for layer in reversed(ir.layers)}
    place = _places(ir)
    for _, run in groupby(ir.layers, key=lambda layer: (_built(layer), place[layer.index])):
        layer, *others = run
        last = f"-{number + len(others)}" if others else ""
        kind = _kind(layer) + _difference(layer, first[layer.template]) + place[layer.index]
        click.echo(f"  {f'{number}{last}':>7}  {layer.template}: {kind}")
        number += 1 + len(others)
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


def _built(layer) -> dict:
    """What a layer is made of, wherever it stands."""
    return {key: value for key, value in asdict(layer).items() if key not in ("index", "entry")}


def _difference(layer, other) -> str:
    """What `layer` has of its own beside `other`, but for the window, which `_kind` says."""
    known = dict(leaves(_built(other)))
    own = [f"{key} {_word(value)}" for key, value in leaves(_built(layer)) if known.get(key, value) != value]
    shown = [text for text in own if not text.startswith("mixer.attention.window ")]
    return f" ({', '.join(shown)})" if shown else ""


def _places(ir) -> dict[int, str]:
    """Where in the schedule a layer stands, if not in a plain row."""
    places = dict.fromkeys(range(len(ir.layers)), "")
    for run in ir.schedule:
        if run.type == "integrator":
            places[run.layer] = f", {run.options.type} in {run.options.steps} steps"
        elif run.type == "parallel":
            places |= {i: f", stream {s.stream} ({run.merge.type})" for s in run.streams for i in s.layers}
    return places


def _word(value: object) -> str:
    """A value as a preset spells it."""
    return value if isinstance(value, str) else json.dumps(value)


def _kind(layer) -> str:
    """Mixer and FFN in a few words."""
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
    return ", ".join([" ".join(words), ffn, *_around(layer)])


def _around(layer) -> list[str]:
    """What a layer has beside its mixer and FFN."""
    words = [layer.memory.type] if layer.memory else []
    words += [f"{layer.shape_change.d_out} wide inside"] if layer.shape_change else []
    words += [f"{layer.residual.hyper.expand} residual streams"] if layer.residual.hyper else []
    return words + ([f"{layer.depth_gating.capacity:.0%} of the tokens"] if layer.depth_gating else [])

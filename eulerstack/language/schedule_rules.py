"""The schedule against the templates it names, which `names.py` looks up, and templates against each other."""

from collections.abc import Iterator
from dataclasses import replace

from eulerstack.language.block import Breach
from eulerstack.language.document import Document
from eulerstack.language.locate import choices_of
from eulerstack.language.schedule import Parallel, Plain
from eulerstack.language.template_rules import norm_options
from eulerstack.language.where import Where


def references(document: Document) -> Iterator[tuple[Where, str]]:
    """Every mention of a template: its address and the name."""
    for layers in document.layers():
        yield layers.where, layers.name
    if document.spec.head.mtp:
        yield ("head", "mtp", "head_template"), document.spec.head.mtp.head_template


def overrides_fit(document: Document) -> Iterator[Breach]:
    for i, entry in enumerate(document.spec.layer_schedule):
        template = isinstance(entry, Plain) and document.spec.layer_templates.get(entry.template)
        if not template or not entry.override:
            continue
        for rule in (_attention, _ffn, _norm):
            yield from (b.under("layer_schedule", i, "override") for b in rule(entry.override, template))


def _attention(override, template) -> Iterator[Breach]:
    if override.attention is None:
        return
    if template.mixer.type != "attention":
        yield Breach(("attention",), f"the template's mixer is {template.mixer.type}", "delete it", key=True)
        return
    own = template.mixer.attention
    if override.attention.window is None and own.window_mode in ("dilated", "nsa"):
        what = f"the template's window_mode {own.window_mode} needs a window"
        yield Breach(("attention", "window"), what, "give a window, or a template of its own")


def _ffn(override, template) -> Iterator[Breach]:
    activation = override.ffn and override.ffn.activation
    if activation is None:
        return
    allowed = choices_of(type(template.ffn), "activation")
    if activation not in allowed:
        what = f"the template's ffn is {template.ffn.type}, which does not know {activation}"
        fix = f"use one of {', '.join(allowed)}" if allowed else "delete it"
        yield Breach(("ffn", "activation"), what, fix)


def _norm(override, template) -> Iterator[Breach]:
    if override.norm is None or override.norm.type in (None, template.norm.type):
        return
    changed = replace(template, norm=replace(template.norm, type=override.norm.type))
    for breach in norm_options(changed):
        yield Breach(("norm", "type"), f"the template's norm sets {breach.where[-1]}; {breach.what}", "use a template")


def streams_join(document: Document) -> Iterator[Breach]:
    for i, entry in enumerate(document.spec.layer_schedule):
        if isinstance(entry, Parallel):
            yield from (b.under("layer_schedule", i) for b in _stream_names(entry))
            yield from (b.under("layer_schedule", i, "merge") for b in _merge(entry))


def _stream_names(entry: Parallel) -> Iterator[Breach]:
    names = [stream.stream for stream in entry.parallel]
    for j, name in enumerate(names):
        if name in names[:j]:
            yield Breach(("parallel", j, "stream"), f"a second stream {name!r}", "give each stream its own name")


def _merge(entry: Parallel) -> Iterator[Breach]:
    merge, names = entry.merge, [stream.stream for stream in entry.parallel]
    for key, name in (("from", merge.from_), ("to", merge.to)):
        if merge.type == "cross_attn" and name is None:
            yield Breach((key,), f"cross_attn needs {key}", f"name a stream: {', '.join(names)}")
        elif merge.type != "cross_attn" and name is not None:
            yield Breach((key,), f"a {merge.type} merge has no {key}", "delete it, or use cross_attn", key=True)
    if merge.type == "concat" and not merge.projection:
        what = f"{len(names)} streams side by side are {len(names)} times as wide as the model"
        yield Breach(("projection",), what, "set it to true, or use add or gated")
    if merge.from_ is not None and merge.from_ == merge.to:
        yield Breach(("to",), "a stream cannot attend to itself here", "name two streams")


def one_residual_stream(document: Document) -> Iterator[Breach]:
    """All layers of a model use one residual type and one `expand`."""
    templates = document.spec.layer_templates
    used = list(dict.fromkeys(name for _, name in references(document) if name in templates))
    for name in used[1:]:
        first, residual = templates[used[0]].residual, templates[name].residual
        where = ("layer_templates", name, "residual")
        if residual.type != first.type:
            what = f"{residual.type} here, {first.type} in template {used[0]!r}"
            yield Breach((*where, "type"), what, "use one residual type in all layers")
        elif residual.hyper and first.hyper and residual.hyper.expand != first.hyper.expand:
            what = f"expand {residual.hyper.expand} here, {first.hyper.expand} in template {used[0]!r}"
            yield Breach((*where, "hyper", "expand"), what, "use one expand in all layers")


SCHEDULE_RULES = (overrides_fit, streams_join, one_residual_stream)

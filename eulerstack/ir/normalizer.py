"""A checked preset -> IR: every default written out, overrides applied, the schedule expanded."""

import os
from dataclasses import replace
from typing import Any

from eulerstack.errors import NormalizationError
from eulerstack.ir.law import verify
from eulerstack.ir.tensors import inner_dims
from eulerstack.ir.types import (
    IR,
    IntegratorRun,
    Layer,
    ParallelRun,
    PlainRun,
    StreamRun,
    dims_of,
    from_dict,
    to_dict,
)
from eulerstack.language.hints import InitOptions, TrainingHints
from eulerstack.language.load import Checked, check, load_preset
from eulerstack.language.residual import Residual
from eulerstack.language.schedule import BodyItem, Override, Parallel, Plain
from eulerstack.language.schema import Embedding, Model, Spec
from eulerstack.language.template import Norm, state_of

MAX_LAYERS = 10_000


def normalize_to_ir(source: dict[str, Any] | str | os.PathLike) -> IR:
    """The IR of a preset: the dict that `yaml.safe_load` gives, or the path of a file.

    Raises the errors of the language, all at once, or NormalizationError for more than 10,000 layers.
    """
    return normalize(load_preset(source) if isinstance(source, str | os.PathLike) else check(source))


def normalize(checked: Checked) -> IR:
    """The same for a preset that is already checked."""
    _bound(checked)
    spec = checked.spec
    model = _model(spec.model)
    embedding = _embedding(spec)
    layers = _Layers(spec, dims_of(model, embedding))
    schedule = tuple(layers.run(entry) for entry in spec.layer_schedule)
    mtp = spec.head.mtp and layers.make(spec.head.mtp.head_template, entry=-1)
    final_norm = spec.head.final_norm
    if final_norm is None:
        final_norm = any(layer.norm.position != "post" for layer in layers.made)
    ir = IR(
        name=model.name,
        schema_version=spec.schema_version,
        model=model,
        tokenizer_contract=spec.tokenizer_contract,
        embedding=embedding,
        layers=tuple(layers.made),
        schedule=schedule,
        head=replace(spec.head, final_norm=final_norm),
        training_hints=_hints(spec.training_hints),
        compatibility=spec.compatibility,
        execution_modes=spec.execution_modes,
        transition=spec.transition,
        mtp_layer=mtp,
        reserved=checked.reserved,
    )
    # Through JSON once: a default and the same value written in the file are then the same number.
    return verify(from_dict(to_dict(ir)))


def d_ff(model: Model) -> int:
    """The width of the FFN, given or `mlp_ratio * d_model` without its fraction (a hair below an integer is one)."""
    return model.d_ff or max(1, int(model.mlp_ratio * model.d_model + 1e-6))


def _model(model: Model) -> Model:
    n_kv_heads, head_dim = model.n_kv_heads or model.n_heads, model.head_dim or model.d_model // model.n_heads
    return replace(model, n_kv_heads=n_kv_heads, head_dim=head_dim, d_ff=d_ff(model))


def _embedding(spec: Spec) -> Embedding:
    """The head decides on ties; yarn's ramp has transformers' defaults."""
    scaling = spec.embedding.rope_scaling
    if scaling is not None and scaling.type == "yarn":
        truncate = True if scaling.truncate is None else scaling.truncate
        ramp = {"beta_fast": scaling.beta_fast or 32.0, "beta_slow": scaling.beta_slow or 1.0, "truncate": truncate}
        scaling = replace(scaling, **ramp)
    return replace(spec.embedding, tie_word_embeddings=spec.head.tie_weights, rope_scaling=scaling)


def _hints(hints: TrainingHints) -> TrainingHints:
    return replace(hints, init=InitOptions()) if isinstance(hints.init, str) else hints


def _bound(checked: Checked) -> None:
    """NormalizationError, before anything is expanded, at the entry that goes past MAX_LAYERS."""
    total = 0
    for i, entry in enumerate(checked.spec.layer_schedule):
        items = [item for stream in entry.parallel for item in stream.body] if isinstance(entry, Parallel) else [entry]
        total += sum(getattr(item, "repeat", 1) for item in items)
        if total > MAX_LAYERS:
            what = f"the schedule expands to more than {MAX_LAYERS:,} layers"
            fix = "repeat less"
            raise NormalizationError(
                checked.source.problem("NormalizationError", ("layer_schedule", i, "repeat"), what, fix)
            )


class _Layers:
    """Makes layers in order; `made` are all so far."""

    def __init__(self, spec: Spec, dims):
        self.spec, self.dims = spec, dims
        self.made: list[Layer] = []
        self.entries = 0

    def run(self, entry):
        """The schedule entry over the layers it adds to `made`."""
        number, self.entries = self.entries, self.entries + 1
        if isinstance(entry, Plain):
            gating = entry.depth_gating if entry.depth_gating and entry.depth_gating.enabled else None
            made = self._add([entry], number, override=entry.override, depth_gating=gating)
            return PlainRun(type="plain", layers=made)
        if isinstance(entry, Parallel):
            streams = tuple(StreamRun(stream=s.stream, layers=self._add(s.body, number)) for s in entry.parallel)
            return ParallelRun(type="parallel", streams=streams, merge=entry.merge)
        options = entry.integrator
        (layer,) = self._add([BodyItem(template=options.body)], number)
        return IntegratorRun(type="integrator", layer=layer, options=options)

    def _add(self, items, entry: int, **changes) -> tuple[int, ...]:
        start = len(self.made)
        for item in items:
            layer = self.make(item.template, entry, **changes)
            self.made += [replace(layer, index=layer.index + i) for i in range(item.repeat)]
        return tuple(range(start, len(self.made)))

    def make(self, name: str, entry: int, override: Override | None = None, depth_gating=None) -> Layer:
        """The layer after the last, of a template under an override."""
        template, override = self.spec.layer_templates[name], override or Override()
        mixer, ffn = _mixer(template.mixer, override), _ffn(template.ffn, override)
        mixer, ffn = (part.completed(inner_dims(template, self.dims)) for part in (mixer, ffn))
        return Layer(
            index=len(self.made),
            template=name,
            entry=entry,
            mixer=mixer,
            ffn=ffn,
            norm=_norm(template.norm, override),
            residual=_residual(template.residual, override),
            state=state_of(mixer),
            memory=template.memory,
            shape_change=template.shape_change,
            depth_gating=depth_gating,
        )


def _mixer(mixer, override: Override):
    change = override.attention
    if change is None:
        return mixer
    own = mixer.attention
    window = own.window if change.window == "inherit" else change.window
    drop = own.attn_drop if change.attn_drop is None else change.attn_drop
    return replace(mixer, attention=replace(own, window=window, attn_drop=drop))


def _ffn(ffn, override: Override):
    change = override.ffn
    return ffn if change is None or change.activation is None else replace(ffn, activation=change.activation)


def _norm(norm: Norm, override: Override) -> Norm:
    change = override.norm
    kind = (change and change.type) or norm.type
    position = (change and change.position) or norm.position
    bias = kind == "layernorm" and norm.bias is not False
    return replace(norm, type=kind, position=position, bias=bias)


def _residual(residual: Residual, override: Override) -> Residual:
    change = override.residual
    scaling = residual.scaling if change is None or change.scaling is None else change.scaling
    return replace(residual, scaling=scaling)

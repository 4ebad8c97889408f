"""IR -> the payload of `config.json`: everything resolved, so that the modeling code guesses nothing."""

import json
from collections.abc import Iterator
from dataclasses import asdict

from eulerstack.errors import CompileError, Problem
from eulerstack.ir.law import gaps, verify
from eulerstack.ir.types import IR, Layer
from eulerstack.language.load import Checked
from eulerstack.language.template import FFNS, MIXERS
from eulerstack.language.where import Where, dotted, see

ROLES = {"mixer": MIXERS, "ffn": FFNS}


def runtime_config(ir: IR) -> dict:
    """The payload, in the words of Hugging Face where transformers reads them and of the language elsewhere.

    The exporter adds what only it knows: `auto_map`, the ids of the tokenizer, versions. CompileError as `refuse`.
    """
    refuse(verify(ir))
    kinds, pattern = _kinds(ir)
    payload = _sizes(ir) | _positions(ir) | _head(ir) | _training(ir)
    payload |= {"blocks": kinds, "block_pattern": pattern, "layer_types": [_layer_type(kinds[k]) for k in pattern]}
    return json.loads(json.dumps(payload))  # tuples become the lists that a reader of the file sees


def parts(ir: IR) -> list[str]:
    """The modeling modules of the mixers and FFNs in use, `mixer_<type>` and `ffn_<type>`, as far as they are built."""
    found = (
        f"{role}_{part.runtime(ir.dims)['type']}"
        for layer in ir.layers
        for role in ROLES
        if not gaps(part := getattr(layer, role))
    )
    return sorted({name for name in found if not name.endswith("_none")})


def refuse(ir: IR, checked: Checked | None = None) -> None:
    """CompileError with every feature of `ir` that is not built yet, placed where `checked` knows the file."""
    if problems := unbuilt(ir, checked):
        raise CompileError(problems)


def unbuilt(ir: IR, checked: Checked | None = None) -> tuple[Problem, ...]:
    """One problem for each feature of `ir` that the language knows and no modeling code builds yet."""
    return tuple(_problem(ir, checked, where, what) for where, what in dict.fromkeys(_gaps(ir)))


def _problem(ir: IR, checked: Checked | None, where: Where, what: str) -> Problem:
    text, fix = f"{what} is not built yet", "leave it out"
    if where[-1] == "type" and where[2:3] and where[2] in ROLES:
        built = sorted(name for name, block in ROLES[where[2]].items() if hasattr(block, "unbuilt"))
        fix = f"use one of {', '.join(built)}"
    if checked is not None:
        return checked.source.problem("CompileError", where, text, fix, key=True)
    return Problem("CompileError", ir.name, None, None, dotted(where), text, fix, see(where))


def _gaps(ir: IR) -> Iterator[tuple[Where, str]]:
    for number, run in enumerate(ir.schedule):
        if run.type != "plain":
            yield ("layer_schedule", number, run.type), f"a schedule entry of kind '{run.type}'"
    for layer in (*ir.layers, *([ir.mtp_layer] if ir.mtp_layer else [])):
        yield from _layer_gaps(layer)
    if ir.head.type != "causal_lm":
        yield ("head", "type"), f"'{ir.head.type}'"
    if ir.compatibility.compile_target != "huggingface":
        yield ("compatibility", "compile_target"), f"'{ir.compatibility.compile_target}'"
    if ir.compatibility.quant_aware_training and ir.compatibility.quant_aware_training.enabled:
        yield ("compatibility", "quant_aware_training", "enabled"), "'quant_aware_training'"
    if ir.execution_modes:
        yield ("execution_modes",), "'execution_modes' in generation"
    if ir.transition:
        yield ("transition",), "'transition' in generation"


def _layer_gaps(layer: Layer) -> Iterator[tuple[Where, str]]:
    template: Where = ("layer_templates", layer.template)
    for role in ROLES:
        part = getattr(layer, role)
        for where in gaps(part):
            yield (*template, role, *where), f"'{part.type if where == ('type',) else where[-1]}'"
    for key in ("memory", "shape_change"):
        if getattr(layer, key) is not None:
            yield (*template, key), f"'{key}'"
    if layer.residual.type == "hyper_connection":
        yield (*template, "residual", "type"), "'hyper_connection'"
    if layer.depth_gating is not None:
        yield ("layer_schedule", layer.entry, "depth_gating"), "'depth_gating'"


def _sizes(ir: IR) -> dict:
    model = ir.model
    return {
        "architectures": ["EulerStackForCausalLM"],
        "model_type": "eulerstack",
        "family_hint": model.family_hint,
        "dtype": model.dtype,
        "torch_dtype": model.dtype,
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": len(ir.layers),
        "num_attention_heads": model.n_heads,
        "num_key_value_heads": model.n_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.d_ff,
        "max_position_embeddings": model.max_seq_len,
        "rms_norm_eps": model.norm_eps,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
        "use_cache": True,
    }


def _positions(ir: IR) -> dict:
    """Both spellings of rope: transformers before 5 reads `rope_theta` and `rope_scaling`, later `rope_parameters`.

    Without rope there are no parameters, or transformers would hold them against a model that does not rotate; and
    `rope_scaling` is there only if it says something, since newer versions warn of it.
    """
    embedding = ir.embedding
    known = {"positional": embedding.positional, "embedding_scale": embedding.scale}
    if embedding.positional != "rope":
        return known | {"rope_parameters": None}
    given = asdict(embedding.rope_scaling) if embedding.rope_scaling else {"type": "default"}
    scaling = {"rope_type": given.pop("type")} | {key: value for key, value in given.items() if value is not None}
    plain = {"rope_theta": embedding.rope_theta, "partial_rotary_factor": embedding.rope_fraction}
    older = {"rope_scaling": scaling} if embedding.rope_scaling else {}
    return known | {"rope_parameters": scaling | plain} | older | plain


def _head(ir: IR) -> dict:
    head, norm = ir.head, ir.layers[-1].norm
    return {
        "tie_word_embeddings": head.tie_weights,
        "head_type": head.type,
        "head_bias": head.bias,
        "final_logit_softcapping": head.logit_softcap,
        "final_norm": _norm(norm) if head.final_norm else None,
    }


def _training(ir: IR) -> dict:
    hints = ir.training_hints
    moes = [layer.ffn.moe for layer in ir.layers if layer.ffn.type == "moe"]
    return {
        "init": asdict(hints.init),
        "initializer_range": hints.init.std,
        "dropout": hints.dropout,
        "dtype_policy": ir.compatibility.dtype_policy,
        "router_aux_loss_coef": hints.router_aux_loss_coef,
        "output_router_logits": any(moe.load_balance_coef > 0 or moe.z_loss > 0 for moe in moes),
        "training_hints": asdict(hints),
        "execution_modes": [asdict(mode) for mode in ir.execution_modes],
        "transition": asdict(ir.transition) if ir.transition else None,
    }


def _kinds(ir: IR) -> tuple[dict[str, dict], list[str]]:
    """Every distinct block under a name, and the name of each layer's.

    The first block of a template has the template's name, others of it (overridden ones) `<template>.<n>`.
    """
    kinds: dict[str, dict] = {}
    pattern = []
    templates = {layer.template for layer in ir.layers}
    for layer in ir.layers:
        block = _block(layer, ir)
        name, n = layer.template, 0
        while kinds.get(name, block) != block or (n and name in templates):
            n += 1
            name = f"{layer.template}.{n}"
        kinds[name] = block
        pattern.append(name)
    return kinds, pattern


def _block(layer: Layer, ir: IR) -> dict:
    return {
        "mixer": layer.mixer.runtime(ir.dims),
        "ffn": layer.ffn.runtime(ir.dims),
        "norm": _norm(layer.norm) | {"position": layer.norm.position},
        "residual": {"type": layer.residual.type, "scaling": layer.residual.scaling},
    }


def _norm(norm) -> dict:
    return {"type": norm.type, "unit_offset": norm.unit_offset, "bias": norm.bias}


def _layer_type(block: dict) -> str:
    """The word that transformers has for a layer; it takes no others."""
    mixer = block["mixer"]
    if "n_kv_heads" not in mixer:
        return "linear_attention"
    return "full_attention" if mixer["window"] is None or mixer["window_mode"] == "nsa" else "sliding_attention"

"""IR -> the payload of `config.json`: everything resolved, so that the modeling code guesses nothing."""

import json
from dataclasses import asdict

from eulerstack.errors import CompileError, Problem
from eulerstack.ir.alike import named
from eulerstack.ir.law import verify
from eulerstack.ir.quantised import scoped
from eulerstack.ir.tensors import inner_dims, parameters
from eulerstack.ir.types import IR, Layer, Run
from eulerstack.language.load import Checked
from eulerstack.language.where import Where, dotted, see


def runtime_config(ir: IR) -> dict:
    """The payload, in the words of Hugging Face where transformers reads them and of the language elsewhere.

    The exporter adds what only it knows: `auto_map`, the ids of the tokenizer, versions. CompileError as `refuse`.
    """
    refuse(verify(ir))
    return payload_of(ir)


def payload_of(ir: IR) -> dict:
    """`runtime_config` without asking whether it can be built."""
    kinds, pattern = _kinds(ir)
    payload = _sizes(ir) | _positions(ir) | _head(ir, pattern) | _training(ir) | _schedule(ir)
    pattern = pattern[: len(ir.layers)]
    payload |= {"blocks": kinds, "block_pattern": pattern, "layer_types": [_layer_type(kinds[k]) for k in pattern]}
    return json.loads(json.dumps(payload))  # tuples become the lists that a reader of the file sees


def refuse(ir: IR, checked: Checked | None = None) -> None:
    """CompileError with everything in `ir` that cannot be built, placed where `checked` knows the file."""
    if problems := unbuilt(ir, checked) + _out_of_scope(ir, checked):
        raise CompileError(problems)


def unbuilt(ir: IR, checked: Checked | None = None) -> tuple[Problem, ...]:
    """One problem for each feature of `ir` that the language knows and nothing builds yet."""
    target, where = ir.compatibility.compile_target, ("compatibility", "compile_target")
    if target == "huggingface":
        return ()
    return (_problem(ir, checked, where, f"'{target}' is not built yet", "leave it out", key=True),)


def _out_of_scope(ir: IR, checked: Checked | None) -> tuple[Problem, ...]:
    """One problem for each pattern that quantises nothing, which only the names of the parameters can tell."""
    quantised = ir.compatibility.quant_aware_training
    if quantised is None or not quantised.enabled or not quantised.scope:
        return ()
    _, idle = scoped(parameters(ir), quantised.scope)
    where = ("compatibility", "quant_aware_training", "scope")
    fix = "name weights as in the checkpoint, for example 'model.layers.*.ffn.*', or leave scope out"
    return tuple(
        _problem(ir, checked, (*where, quantised.scope.index(pattern)), f"'{pattern}' matches no matrix", fix)
        for pattern in idle
    )


def _problem(ir: IR, checked: Checked | None, where: Where, what: str, fix: str, *, key: bool = False) -> Problem:
    if checked is not None:
        return checked.source.problem("CompileError", where, what, fix, key=key)
    return Problem("CompileError", ir.name, None, None, dotted(where), what, fix, see(where))


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
    """Both spellings of rope: transformers before 5 reads `rope_theta`, later `rope_parameters`.

    Without rope there are no parameters, or transformers would hold them against a model that does not rotate. The
    older `rope_scaling` is no key of the file but an attribute of its class, which says why.
    """
    embedding = ir.embedding
    known = {"positional": embedding.positional, "embedding_scale": embedding.scale}
    if embedding.positional != "rope":
        return known | {"rope_parameters": None}
    given = asdict(embedding.rope_scaling) if embedding.rope_scaling else {"type": "default"}
    scaling = {"rope_type": given.pop("type")} | {key: value for key, value in given.items() if value is not None}
    plain = {"rope_theta": embedding.rope_theta, "partial_rotary_factor": embedding.rope_fraction}
    return known | {"rope_parameters": scaling | plain} | plain


def _schedule(ir: IR) -> dict:
    """The order in which the layers run, where that is not one after the other, and what they run on."""
    hyper = ir.layers[0].residual.hyper
    streams = {"streams": hyper.expand} if hyper else {}
    if all(run.type == "plain" for run in ir.schedule):
        return streams
    return streams | {"schedule": [_run(run, ir) for run in ir.schedule]}


def _run(run: Run, ir: IR) -> dict:
    if run.type == "plain":
        return {"type": "plain", "layers": run.layers}
    if run.type == "integrator":
        options = {"method": run.options.type, "steps": run.options.steps, "output": run.options.output}
        return {"type": "integrator", "layer": run.layer, "norm": _norm(ir.layers[run.layer].norm)} | options
    merge, names = run.merge, [stream.stream for stream in run.streams]
    source, target = (name and names.index(name) for name in (merge.from_, merge.to))
    options = {"merge": merge.type, "projection": merge.projection, "source": source, "target": target}
    return {"type": "parallel", "streams": [stream.layers for stream in run.streams]} | options


def _head(ir: IR, pattern: list[str]) -> dict:
    head, norm = ir.head, ir.layers[-1].norm
    names = ("n_predict", "head_layers", "train_loss_weight")
    mtp = {"kind": pattern[-1]} | {name: getattr(head.mtp, name) for name in names} if head.mtp else None
    return ({"mtp": mtp} if mtp else {}) | {
        "tie_word_embeddings": head.tie_weights,
        "head_type": head.type,
        "head_bias": head.bias,
        "final_logit_softcapping": head.logit_softcap,
        "final_norm": _norm(norm) if head.final_norm else None,
    }


def _training(ir: IR) -> dict:
    hints = ir.training_hints
    layers = (*ir.layers, ir.mtp_layer) if ir.mtp_layer else ir.layers
    moes = [layer.ffn.moe for layer in layers if layer.ffn.type == "moe"]
    weighed = any(layer.depth_gating for layer in layers) or any(_balanced(moe) for moe in moes)
    quantised = ir.compatibility.quant_aware_training
    names = ("dtype", "scope", "dequant_to")
    known = {name: getattr(quantised, name) for name in names} if quantised and quantised.enabled else None
    return ({"quantisation": known} if known else {}) | {
        "init": asdict(hints.init),
        "initializer_range": hints.init.std,
        "dropout": hints.dropout,
        "dtype_policy": ir.compatibility.dtype_policy,
        "router_aux_loss_coef": hints.router_aux_loss_coef if weighed else 0.0,  # else TRL asks for that loss
        "output_router_logits": weighed,
        "training_hints": asdict(hints),
        "execution_modes": [asdict(mode) for mode in ir.execution_modes],
        "transition": asdict(ir.transition) if ir.transition else None,
    }


def _balanced(moe) -> bool:
    """Whether a loss of its own keeps the router of a mixture of experts in balance."""
    return moe.load_balance_coef > 0 or moe.z_loss > 0 or moe.balance.sequence_aux_coef > 0


def _kinds(ir: IR) -> tuple[dict[str, dict], list[str]]:
    """Every kind of layer under its name, and the name of each layer's, that of the extra heads' layer last."""
    layers = (*ir.layers, ir.mtp_layer) if ir.mtp_layer else ir.layers
    groups = named(layers)
    names = {id(layer): name for name, group in groups.items() for layer in group}
    return {name: _block(group[0], ir) for name, group in groups.items()}, [names[id(layer)] for layer in layers]


def _block(layer: Layer, ir: IR) -> dict:
    """A kind of layer; a key of what few layers have is there only if this one does."""
    dims = inner_dims(layer, ir.dims)
    block = {
        "mixer": layer.mixer.runtime(dims),
        "ffn": layer.ffn.runtime(dims),
        "norm": _norm(layer.norm) | {"position": layer.norm.position},
        "residual": {"type": layer.residual.type, "scaling": layer.residual.scaling},
    }
    if layer.residual.hyper:
        block["residual"] |= asdict(layer.residual.hyper)
    if layer.memory:
        block["memory"] = layer.memory.runtime(dims)
    extra = {key: getattr(layer, key) for key in ("shape_change", "depth_gating")}
    block |= {key: asdict(options) for key, options in extra.items() if options}
    block.get("depth_gating", {}).pop("enabled", None)
    return block


def _norm(norm) -> dict:
    return {"type": norm.type, "unit_offset": norm.unit_offset, "bias": norm.bias}


def _layer_type(block: dict) -> str:
    """The word that transformers has for a layer; it takes no others. Windows are what only attention has."""
    mixers = (block["mixer"], *block["mixer"].get("branches", {}).values())
    attends = [mixer for mixer in mixers if "window" in mixer]
    if not attends:
        return "linear_attention"
    near = [mixer["window"] is not None and mixer["window_mode"] != "nsa" for mixer in attends]
    bound = all(near) and not any("compression" in mixer for mixer in attends)
    return "sliding_attention" if bound else "full_attention"

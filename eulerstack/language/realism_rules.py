"""The named heuristics of realism: a rule is a function from the document to its findings, its name the rule's name."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from eulerstack.language.document import Document
from eulerstack.language.where import Where

KNOWN_VOCABULARIES = {"gpt2": 50257, "gpt-neox": 50277, "llama-2": 32000, "llama-3": 128256, "mistral-7b": 32000}
# A family and the mixers it is known for; exactly these where `only`.
FAMILIES = {
    "llama": ({"attention"}, True),
    "mistral": ({"attention"}, True),
    "gpt2": ({"attention"}, True),
    "mamba": ({"mamba"}, False),
    "jamba": ({"mamba", "attention"}, False),
    "retnet": ({"retnet"}, False),
    "hyena": ({"hyena"}, False),
}
COMPLEX_MIXERS = ("mamba", "hyena")


class Finding(NamedTuple):
    where: Where
    what: str
    fix: str
    error: bool = False


Findings = Iterator[Finding]


def head_dim_range(document: Document) -> Findings:
    if not 32 <= document.head_dim <= 256 and any(m.type in ("attention", "retnet") for _, m in document.mixers()):
        where = ("model", "head_dim" if document.spec.model.head_dim else "n_heads")
        yield Finding(where, f"a head of {document.head_dim} channels", "most models have 64 to 128")


def target_params_mismatch(document: Document) -> Findings:
    target, estimate = document.spec.model.target_params, document.estimate
    if target and estimate and not 0.7 <= estimate / target <= 1.3:
        what = f"{estimate:,} parameters are {estimate / target:.0%} of the target"
        yield Finding(("model", "target_params"), what, "change the sizes, or the target")


def moe_expert_ratio(document: Document) -> Findings:
    for name, template in document.spec.layer_templates.items():
        if template.ffn.type != "moe":
            continue
        moe, where = template.ffn.moe, ("layer_templates", name, "ffn", "moe")
        if moe.experts > 1024:
            fix = "the largest published models have 384"
            yield Finding((*where, "experts"), f"{moe.experts} experts", fix, error=moe.experts > 4096)
        if moe.capacity_factor < 0.5:
            yield Finding((*where, "capacity_factor"), f"capacity for {moe.capacity_factor:g} of the tokens", "use 1.0")


def affinity_consistency(document: Document) -> Findings:
    for name, template in document.spec.layer_templates.items():
        moe = template.ffn.moe if template.ffn.type == "moe" else None
        chosen = moe and moe.routing.type == "learned"  # a hash leaves a bias nothing to correct
        if chosen and moe.affinity == "sqrt_softplus" and not moe.bias_correction.enabled:
            where = ("layer_templates", name, "ffn", "moe", "affinity")
            yield Finding(where, "sqrt_softplus without bias correction", "add `bias_correction: {enabled: true}`")


def hash_routing_first_layers(document: Document) -> Findings:
    runs = [(layers, t.ffn.moe) for layers, t in document.scheduled() if t.ffn.type == "moe"]
    first = math.ceil(sum(layers.count for layers, _ in runs) / 4)
    seen = 0
    for layers, moe in runs:
        seen += layers.count
        if moe.routing.type == "hash" and seen > first:
            what = f"hash routing past the first {first} MoE layers"
            yield Finding(layers.where, what, "let later layers learn their routing")


def seq_len_ratio(document: Document) -> Findings:
    model = document.spec.model
    if model.max_seq_len > 64 * model.d_model and any(_is_global(*run) for run in document.scheduled()):
        what = f"global attention over {model.max_seq_len / model.d_model:.0f} times d_model"
        yield Finding(("model", "max_seq_len"), what, "give attention a window, or shorten the context")


def _is_global(layers, template) -> bool:
    if template.mixer.type != "attention":
        return False
    override = layers.override and layers.override.attention
    inherits = override is None or override.window == "inherit"
    return (template.mixer.attention.window if inherits else override.window) is None


def dropout_regularization(document: Document) -> Findings:
    hints = document.spec.training_hints
    runs = document.scheduled()
    count = sum(run.count for run, t in runs if t.mixer.type in COMPLEX_MIXERS or t.ffn.type == "moe")
    if count > 16 and not hints.dropout and not hints.checkpointing:
        what = f"{count} complex layers with neither dropout nor checkpointing"
        yield Finding(("training_hints",), what, "set training_hints.checkpointing to true")


def family_hint_consistency(document: Document) -> Findings:
    hint = (document.spec.model.family_hint or "").lower()
    found = {m.type for _, m in document.mixers()} - {"branched", "none"}
    for family, (mixers, only) in FAMILIES.items():
        if family in hint and (found != mixers if only else not mixers <= found):
            what = f"a {family} has {' and '.join(sorted(mixers))}, this model has {', '.join(sorted(found))}"
            yield Finding(("model", "family_hint"), what, "correct the hint, or the mixers")


def vocab_tokenizer_consistency(document: Document) -> Findings:
    name, size = (document.spec.tokenizer_contract.pretrained or "").lower(), document.spec.model.vocab_size
    for known, vocabulary in KNOWN_VOCABULARIES.items():
        if known in name and size < vocabulary:
            what = f"{name} has {vocabulary} tokens, vocab_size is {size}"
            yield Finding(("model", "vocab_size"), what, f"use at least {vocabulary}")


def tie_weight_consistency(document: Document) -> Findings:
    embedding, head = document.spec.embedding.tie_word_embeddings, document.spec.head.tie_weights
    if embedding != head:
        what = f"embedding says {str(embedding).lower()}, head says {str(head).lower()} and decides"
        place = ("embedding", "tie_word_embeddings")
        where = place if document.given(*place) else ("head", "tie_weights")
        yield Finding(where, what, "give embedding.tie_word_embeddings and head.tie_weights the same value")


def rope_scaling_factor(document: Document) -> Findings:
    scaling = document.spec.embedding.rope_scaling
    if scaling and not 0 < scaling.factor <= 32:
        what = f"a factor of {scaling.factor:g}"
        fix = "the factor is the new length over the old, a number from 1 to 32"
        yield Finding(("embedding", "rope_scaling", "factor"), what, fix, error=scaling.factor <= 0)


def negative_dropout(document: Document) -> Findings:
    if document.spec.training_hints.dropout < 0:
        what = f"a probability of {document.spec.training_hints.dropout:g}"
        yield Finding(("training_hints", "dropout"), what, "use 0 or more", error=True)


def mla_latent_dim_range(document: Document) -> Findings:
    d_model = document.spec.model.d_model
    for where, mixer in document.mixers():
        latent = mixer.attention.latent_dim if mixer.type == "attention" else None
        if latent and not d_model / 16 <= latent <= d_model * 3 / 4:
            what = f"a latent of {latent} for d_model {d_model}"
            yield Finding((*where, "attention", "latent_dim"), what, "between d_model/8 and d_model/2 is usual")


def execution_modes_budget(document: Document) -> Findings:
    budget, longest = sum(mode.max_tokens for mode in document.spec.execution_modes), document.spec.model.max_seq_len
    if budget > longest:
        what = f"{budget} tokens in all modes, max_seq_len is {longest}"
        yield Finding(("execution_modes",), what, "lower a budget, or raise max_seq_len")


def depth_gating_capacity_extreme(document: Document) -> Findings:
    for i, entry in enumerate(document.spec.layer_schedule):
        gating = getattr(entry, "depth_gating", None)
        if gating and gating.enabled and not 0.1 <= gating.capacity < 0.99:
            what = f"{gating.capacity:g} of the tokens pass the layer"
            yield Finding(("layer_schedule", i, "depth_gating", "capacity"), what, "use 0.1 to 0.9, or no gating")


def integrator_steps_range(document: Document) -> Findings:
    for i, entry in enumerate(document.spec.layer_schedule):
        steps = entry.integrator.steps if hasattr(entry, "integrator") else 0
        if steps > 32:
            yield Finding(("layer_schedule", i, "integrator", "steps"), f"{steps} steps", "up to 16 are usual")


def memory_hidden_range(document: Document) -> Findings:
    for name, template in document.spec.layer_templates.items():
        if template.memory and template.memory.params.hidden > 8 * document.spec.model.d_model:
            what = f"a memory of {template.memory.params.hidden}, over 8 d_model"
            yield Finding(("layer_templates", name, "memory", "params", "hidden"), what, "try 4 d_model first")


def shape_change_direction(document: Document) -> Findings:
    for name, template in document.spec.layer_templates.items():
        if template.shape_change and template.shape_change.d_out > document.spec.model.d_model:
            what = f"{template.shape_change.d_out} is wider than d_model"
            yield Finding(("layer_templates", name, "shape_change", "d_out"), what, "hourglasses narrow")


def ttt_inner_lr_range(document: Document) -> Findings:
    for where, mixer in document.mixers():
        if mixer.type == "ttt_layer" and not 1e-6 <= mixer.ttt.inner_lr <= 1:
            what = f"an inner learning rate of {mixer.ttt.inner_lr:g}"
            yield Finding((*where, "ttt", "inner_lr"), what, "use 0.001 to 0.01")


RULES = (
    head_dim_range,
    target_params_mismatch,
    moe_expert_ratio,
    affinity_consistency,
    hash_routing_first_layers,
    seq_len_ratio,
    dropout_regularization,
    family_hint_consistency,
    vocab_tokenizer_consistency,
    tie_weight_consistency,
    rope_scaling_factor,
    negative_dropout,
    mla_latent_dim_range,
    execution_modes_budget,
    depth_gating_capacity_extreme,
    integrator_steps_range,
    memory_hidden_range,
    shape_change_direction,
    ttt_inner_lr_range,
)

"""What is written and yet does nothing where it stands: never an error, always a warning.

Files written for other versions may say such things, and whoever wrote them should know.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Any

from eulerstack.language.block import Breach
from eulerstack.language.document import Document
from eulerstack.language.latent import is_decoupled
from eulerstack.language.schedule import Override, Plain
from eulerstack.language.schedule_rules import references
from eulerstack.language.where import Where


def unused_templates(document: Document) -> Iterator[Breach]:
    used = {name for _, name in references(document)}
    for name in document.spec.layer_templates:
        if name not in used:
            yield Breach(("layer_templates", name), "no layer uses it", "schedule it, or delete it", key=True)


def overrides_of_nothing(document: Document) -> Iterator[Breach]:
    for i, entry in enumerate(document.spec.layer_schedule):
        override = getattr(entry, "override", None)
        if override is not None and override == Override():
            yield Breach(("layer_schedule", i, "override"), "it changes nothing", "say what, or delete it", key=True)
        for key, block in vars(override or Override()).items():
            if block is not None and block == type(block)():
                where = ("layer_schedule", i, "override", key)
                yield Breach(where, "it changes nothing", "say what, or delete it", key=True)


READERS = {"rope": ("attention", "retnet"), "alibi": ("attention",)}


def positions_that_nobody_reads(document: Document) -> Iterator[Breach]:
    positional = document.spec.embedding.positional
    readers = READERS.get(positional)
    if readers and not any(m.type in readers and _turns(m) for _, m in document.mixers()):
        what = f"no mixer here reads {positional} positions"
        yield Breach(("embedding", "positional"), what, "set it to none; a recurrence knows the order by itself")


def _turns(mixer: Any) -> bool:
    return mixer.type != "retnet" or mixer.retnet.rope


def shares_of_whole_parts(document: Document) -> Iterator[Breach]:
    rotating = [m for _, m in document.mixers() if m.type in READERS["rope"]]
    decoupled = [m.type == "attention" and is_decoupled(m.attention) for m in rotating]
    if document.spec.embedding.rope_fraction != 1 and decoupled and all(decoupled):
        what = "the rotary parts of latent attention rotate whole, and no other head here rotates"
        yield Breach(("embedding", "rope_fraction"), what, "delete it, and set qk_rope_dim", key=True)


def chunks_of_a_whole(document: Document) -> Iterator[Breach]:
    for where, mixer in document.mixers():
        key = (*where, "retnet", "chunk_size")
        if mixer.type == "retnet" and not mixer.retnet.chunkwise and document.given(*key):
            yield Breach(key, "without chunkwise there are no chunks", "set chunkwise, or delete it", key=True)


def windows_that_hide_nothing(document: Document) -> Iterator[Breach]:
    entries = (entry for entry in document.spec.layer_schedule if isinstance(entry, Plain))
    narrowed = {e.template for e in entries if e.override and isinstance(_window(e.override), int)}
    for where, mixer in document.mixers():
        own = mixer.attention if mixer.type == "attention" else None
        if own and own.window_mode == "sliding" and own.window is None and where[1] not in narrowed:
            yield Breach((*where, "attention", "window_mode"), "sliding without a window is global", "add `window:`")
        if own and own.window_mode == "dilated" and (own.window_dilation or 1) == 1:
            what = "dilated by 1 leaves out no key of the window"
            yield Breach((*where, "attention", "window_mode"), what, "set window_dilation to 2 or more")


def _window(override: Override) -> int | str | None:
    return override.attention and override.attention.window


def blocks_without_a_choice(document: Document) -> Iterator[Breach]:
    """Compressed attention over fewer blocks than it may keep, or over none."""
    length = document.spec.model.max_seq_len
    for where, mixer in document.mixers():
        own = mixer.attention.compression if mixer.type == "attention" else None
        if own is not None and own.m_block > length:
            what = f"no block of {own.m_block} tokens is ever complete in {length}"
            yield Breach((*where, "attention", "compression", "m_block"), what, "use smaller blocks")
        elif own is not None and own.top_k_blocks is not None and own.top_k_blocks >= length // own.m_block:
            what = f"{length} tokens are {length // own.m_block} blocks, so every one is chosen"
            yield Breach((*where, "attention", "compression", "top_k_blocks"), what, "choose fewer, or use type hca")


def options_of_another_choice(document: Document) -> Iterator[Breach]:
    """An option that only the alternative to what was chosen would read."""
    if document.given("model", "mlp_ratio") and document.spec.model.d_ff is not None:
        yield Breach(("model", "mlp_ratio"), "d_ff is given and decides", "keep one of them", key=True)
    scaling, where = document.spec.embedding.rope_scaling, ("embedding", "rope_scaling", "mscale")
    if scaling and scaling.attention_factor is not None and scaling.mscale is not None:
        yield Breach(where, "attention_factor is given and decides", "keep one of them", key=True)
    for name, template in document.spec.layer_templates.items():
        if template.ffn.type != "moe":
            continue
        moe, where = template.ffn.moe, ("layer_templates", name, "ffn", "moe")
        if document.given(*where, "capacity_factor") and moe.capacity_drop_policy == "overflow":
            fix = "set capacity_drop_policy to drop or pad, or delete it"
            yield Breach(
                (*where, "capacity_factor"), "overflow drops no token, so nothing has a capacity", fix, key=True
            )
        if document.given(*where, "router") and moe.affinity not in (None, moe.router):
            yield Breach((*where, "router"), "affinity is given and decides", "keep one of them", key=True)
        if moe.routing.type == "hash" and document.given(*where, "load_balance_coef") and moe.load_balance_coef > 0:
            what = "a hash chooses the experts, so no loss can even them"
            yield Breach((*where, "load_balance_coef"), what, "delete it, or let routing be learned", key=True)


def hidden_layers_of_linear_models(document: Document) -> Iterator[Breach]:
    for where, mixer in document.mixers():
        key = (*where, "ttt", "inner_model", "hidden")
        if mixer.type == "ttt_layer" and mixer.ttt.inner_model.type == "linear" and document.given(*key):
            yield Breach(key, "a linear inner model has no hidden layer", "delete it, or set type mlp", key=True)


def switches_left_off(document: Document) -> Iterator[Breach]:
    """A block of settings whose `enabled` was not written and is false by itself."""
    blocks: list[tuple[Where, Any]] = [
        (("layer_templates", name, "ffn", "moe", "bias_correction"), template.ffn.moe.bias_correction)
        for name, template in document.spec.layer_templates.items()
        if template.ffn.type == "moe"
    ]
    blocks.append((("compatibility", "quant_aware_training"), document.spec.compatibility.quant_aware_training))
    for where, settings in blocks:
        if document.given(*where) and settings is not None and not document.given(*where, "enabled"):
            yield Breach(where, "enabled is false unless written", "add `enabled: true`, or delete it", key=True)


def losses_switched_off(document: Document) -> Iterator[Breach]:
    if document.spec.training_hints.router_aux_loss_coef:
        return
    for name, template in document.spec.layer_templates.items():
        moe = template.ffn.moe if template.ffn.type == "moe" else None
        weights = (("load_balance_coef",), ("z_loss",), ("balance", "sequence_aux_coef")) if moe else ()
        for keys in weights:
            where = ("layer_templates", name, "ffn", "moe", *keys)
            if document.given(*where) and reduce(getattr, keys, moe) > 0:
                what = "training_hints.router_aux_loss_coef is 0 and switches it off"
                yield Breach(where, what, "set router_aux_loss_coef above 0, or delete this", key=True)


def memories_out_of_reach(document: Document) -> Iterator[Breach]:
    """Retrieval stores tokens: without storing there is nothing to find, and a step size moves nothing."""
    for name, template in document.spec.layer_templates.items():
        memory, where = template.memory, ("layer_templates", name, "memory")
        if memory is None or memory.type != "retrieval":
            continue
        if not memory.update_at_inference and memory.persistence != "persistent":
            what = "outside of training no token is ever stored, so there is none to retrieve"
            yield Breach((*where, "update_at_inference"), what, "set update_at_inference to true")
        if document.given(*where, "inner_lr"):
            what = "retrieval stores tokens as they are, without a step"
            yield Breach((*where, "inner_lr"), what, "delete it", key=True)


def iterations_that_nobody_runs(document: Document) -> Iterator[Breach]:
    for name, template in document.spec.layer_templates.items():
        hyper, where = template.residual.hyper, ("layer_templates", name, "residual", "hyper", "sinkhorn_iters")
        if hyper is not None and hyper.mixing != "birkhoff" and document.given(*where):
            yield Breach(where, f"{hyper.mixing} mixing has no iterations", "delete it, or use birkhoff", key=True)


def gates_that_nobody_trains(document: Document) -> Iterator[Breach]:
    """The decision that evaluation takes is learned by a loss of its own alone."""
    for i, entry in enumerate(document.spec.layer_schedule):
        gating = getattr(entry, "depth_gating", None)
        if gating and gating.enabled and not document.spec.training_hints.router_aux_loss_coef:
            what = "training_hints.router_aux_loss_coef is 0, so no gate learns which tokens to pass in evaluation"
            yield Breach(("layer_schedule", i, "depth_gating"), what, "set router_aux_loss_coef above 0", key=True)


def phases_without_a_next(document: Document) -> Iterator[Breach]:
    """What says how one phase passes into another, where none does."""
    modes, transition = document.spec.execution_modes, document.spec.transition
    if transition and transition.type == "budget_exhausted" and not modes:
        yield Breach(("transition",), "there are no execution_modes whose budget it could end", "delete it", key=True)
    if modes and not modes[-1].kv_share:
        where = ("execution_modes", len(modes) - 1, "kv_share")
        yield Breach(where, "no phase comes after the last that could share its cache", "delete it", key=True)


IDLE_RULES = (
    unused_templates,
    overrides_of_nothing,
    positions_that_nobody_reads,
    shares_of_whole_parts,
    chunks_of_a_whole,
    windows_that_hide_nothing,
    blocks_without_a_choice,
    options_of_another_choice,
    hidden_layers_of_linear_models,
    switches_left_off,
    losses_switched_off,
    iterations_that_nobody_runs,
    gates_that_nobody_trains,
    memories_out_of_reach,
    phases_without_a_next,
)

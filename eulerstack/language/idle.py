"""What is written and yet does nothing where it stands: never an error, always a warning.

Files written for other versions may say such things, and whoever wrote them should know.
"""

from collections.abc import Iterator
from typing import Any

from eulerstack.language.block import Breach
from eulerstack.language.document import Document
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
    if readers and not any(mixer.type in readers for _, mixer in document.mixers()):
        what = f"no mixer here reads {positional} positions"
        yield Breach(("embedding", "positional"), what, "set it to none; a recurrence knows the order by itself")


def windows_that_hide_nothing(document: Document) -> Iterator[Breach]:
    entries = (entry for entry in document.spec.layer_schedule if isinstance(entry, Plain))
    narrowed = {e.template for e in entries if e.override and e.override.attention and _size(e.override.attention)}
    for where, mixer in document.mixers():
        own = mixer.attention if mixer.type == "attention" else None
        if own and own.window_mode == "sliding" and own.window is None and where[1] not in narrowed:
            yield Breach((*where, "attention", "window_mode"), "sliding without a window is global", "add `window:`")
        if own and own.window_mode == "dilated" and (own.window_dilation or 1) == 1:
            what = "dilated by 1 leaves out no key of the window"
            yield Breach((*where, "attention", "window_mode"), what, "set window_dilation to 2 or more")


def _size(override: Any) -> bool:
    return isinstance(override.window, int)


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
        for key in ("load_balance_coef", "z_loss") if template.ffn.type == "moe" else ():
            where = ("layer_templates", name, "ffn", "moe", key)
            if document.given(*where) and getattr(template.ffn.moe, key) > 0:
                what = "training_hints.router_aux_loss_coef is 0 and switches it off"
                yield Breach(where, what, "set router_aux_loss_coef above 0, or delete this", key=True)


IDLE_RULES = (
    unused_templates,
    overrides_of_nothing,
    positions_that_nobody_reads,
    windows_that_hide_nothing,
    options_of_another_choice,
    switches_left_off,
    losses_switched_off,
)

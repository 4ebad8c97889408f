"""Fields held against each other. A rule is a function from the document to the breaches it finds.

What one mixer or FFN says about itself stands in its own file (`Block.breaches`), what one template says in
`template_rules.py`, what the schedule says in `schedule_rules.py`, the rest here.
"""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from eulerstack.errors import Problem
from eulerstack.language.block import Breach
from eulerstack.language.document import Document, echoes
from eulerstack.language.scalars import BIGGEST
from eulerstack.language.schedule_rules import SCHEDULE_RULES
from eulerstack.language.template import Template
from eulerstack.language.template_rules import TEMPLATE_RULES
from eulerstack.language.where import Where


def check_rules(document: Document, wrong: set[Where]) -> list[Problem]:
    """Every breach, placed, except those that may only echo a problem at an address in `wrong`."""
    breaches = [breach for rule in (*RULES, *SCHEDULE_RULES) for breach in rule(document)]
    return [
        document.source.problem("CompatibilityError", b.where, b.what, b.fix, key=b.key)
        for b in breaches
        if not echoes(b.where, wrong)
    ]


def heads_divide(document: Document) -> Iterator[Breach]:
    model = document.spec.model
    if model.head_dim is None and model.d_model % model.n_heads:
        what = f"d_model {model.d_model} is not a multiple of n_heads {model.n_heads}"
        yield Breach(("model", "n_heads"), what, "change one of the two, or give head_dim")
    if model.n_kv_heads and model.n_heads % model.n_kv_heads:
        what = f"n_heads {model.n_heads} is not a multiple of n_kv_heads {model.n_kv_heads}"
        yield Breach(("model", "n_kv_heads"), what, f"use a divisor of {model.n_heads}")


def rope_keys_need_rope(document: Document) -> Iterator[Breach]:
    positional = document.spec.embedding.positional
    for key in ("rope_theta", "rope_scaling", "rope_fraction"):
        if positional != "rope" and document.given("embedding", key):
            yield Breach(("embedding", key), f"positional is {positional}", f"delete {key}, or use rope", key=True)


def rope_needs_even_heads(document: Document) -> Iterator[Breach]:
    spec, head_dim = document.spec, document.head_dim
    rotates = [m for _, m in document.mixers() if m.type == "attention"]
    if spec.embedding.positional != "rope" or not rotates or _heads_wrong(document):
        return
    rotated = spec.embedding.rope_fraction * head_dim
    if head_dim % 2:
        where = ("model", "head_dim") if spec.model.head_dim else ("model", "n_heads")
        yield Breach(where, f"rope turns pairs of channels, but a head has {head_dim}", "make head_dim even")
    elif int(rotated) % 2 or int(rotated) != round(rotated) or rotated < 2:
        what = f"{spec.embedding.rope_fraction:g} of a head of {head_dim} is {rotated:g} channels, no even number"
        yield Breach(("embedding", "rope_fraction"), what, f"use an even number over {head_dim}")
    elif rotated < spec.embedding.fewest_turning:
        what = f"dynamic scaling stretches the slower pairs of a head, but only {int(rotated)} of its channels turn"
        yield Breach(("embedding", "rope_scaling", "type"), what, "let 4 channels turn, or use linear")


def _heads_wrong(document: Document) -> bool:
    return any(True for _ in heads_divide(document))


ROPE_FIELDS = {
    "linear": ((), ()),
    "dynamic": ((), ()),
    "yarn": (
        ("original_max_position_embeddings",),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": (("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"), ()),
}


def rope_scaling_fields(document: Document) -> Iterator[Breach]:
    """The extra fields of each type, as transformers' `modeling_rope_utils` requires and accepts them."""
    scaling, where = document.spec.embedding.rope_scaling, ("embedding", "rope_scaling")
    if scaling is None:
        return
    required, optional = ROPE_FIELDS[scaling.type]
    for key in (name for name in scaling.__dataclass_fields__ if name not in ("type", "factor")):
        given = getattr(scaling, key) is not None
        if key in required and not given:
            yield Breach((*where, key), f"{scaling.type} needs {key}", f"add `{key}:`")
        if given and key not in (*required, *optional):
            yield Breach((*where, key), f"{scaling.type} has no {key}", "delete it, or change type", key=True)


def rope_scaling_bounds(document: Document) -> Iterator[Breach]:
    """The two ends between which yarn and llama3 blend; yarn's defaults are transformers'."""
    scaling = document.spec.embedding.rope_scaling
    if scaling is None or scaling.type not in ("yarn", "llama3"):
        return
    low, high = ("beta_slow", "beta_fast") if scaling.type == "yarn" else ("low_freq_factor", "high_freq_factor")
    lower, upper = getattr(scaling, low) or 1, getattr(scaling, high) or 32
    if lower >= upper:
        where = ("embedding", "rope_scaling", low)
        yield Breach(where, f"{low} {lower:g} is not below {high} {upper:g}", "swap or change them")


def yarn_is_whole(document: Document) -> Iterator[Breach]:
    """What the formula of yarn reads: the two mscales as a ratio, and a base whose powers differ."""
    scaling, where = document.spec.embedding.rope_scaling, ("embedding", "rope_scaling")
    if scaling is None or scaling.type != "yarn":
        return
    for key, other in (("mscale", "mscale_all_dim"), ("mscale_all_dim", "mscale")):
        if getattr(scaling, key) is not None and getattr(scaling, other) is None:
            yield Breach((*where, key), f"without {other} it means nothing", f"add `{other}:`, or delete it", key=True)
    if document.spec.embedding.rope_theta <= 1:
        what = (
            f"yarn sorts pairs by wavelength, which a theta of {document.spec.embedding.rope_theta:g} does not spread"
        )
        yield Breach(("embedding", "rope_theta"), what, "use more than 1, usually 10000 or more")


def ffn_width_is_a_number(document: Document) -> Iterator[Breach]:
    model = document.spec.model
    if model.d_ff is None and model.mlp_ratio * model.d_model >= BIGGEST:
        what = f"an FFN {model.mlp_ratio:g} times as wide as {model.d_model}"
        yield Breach(("model", "mlp_ratio"), what, "use a smaller ratio, usually 2 to 4")


def template_parts_agree(document: Document) -> Iterator[Breach]:
    for name, template in document.spec.layer_templates.items():
        where, spec = ("layer_templates", name), _inside(document, template)
        yield from (b.under(*where, "mixer") for b in template.mixer.breaches(spec))
        yield from (b.under(*where, "ffn") for b in template.ffn.breaches(spec))
        for rule in TEMPLATE_RULES:
            yield from (b.under(*where) for b in rule(template))


def _inside(document: Document, template: Template) -> Any:
    """The document as the parts of a template see it: of another width where its shape changes, with the same heads."""
    spec, change = document.spec, template.shape_change
    if change is None or _heads_wrong(document):
        return spec
    model = replace(spec.model, d_model=change.d_out, head_dim=document.head_dim)
    return SimpleNamespace(**vars(spec) | {"model": model})


def head_matches(document: Document) -> Iterator[Breach]:
    head = document.spec.head
    if head.type == "causal_lm_mtp" and head.mtp is None:
        yield Breach(("head", "mtp"), "causal_lm_mtp needs mtp", "add `mtp: {head_template: <template>}`")
    if head.type == "causal_lm" and head.mtp is not None:
        yield Breach(("head", "mtp"), "causal_lm has no mtp", "delete it, or use causal_lm_mtp", key=True)


SMALLEST_BPE = 259


def tokenizer_matches(document: Document) -> Iterator[Breach]:
    contract, where = document.spec.tokenizer_contract, "tokenizer_contract"
    hf = contract.type == "hf"
    if hf and contract.pretrained is None:
        yield Breach((where, "pretrained"), "hf needs pretrained", "add a directory or a hub name, for example gpt2")
    if not hf and contract.pretrained is not None:
        yield Breach((where, "pretrained"), "byte_bpe is trained here", "delete it, or use hf", key=True)
    if hf and contract.corpus is not None:
        yield Breach((where, "corpus"), "hf is not trained here", "delete it, or use byte_bpe", key=True)
    if not hf and document.spec.model.vocab_size < SMALLEST_BPE:
        what = f"byte_bpe needs 256 bytes and three special tokens, found {document.spec.model.vocab_size}"
        yield Breach(("model", "vocab_size"), what, f"use at least {SMALLEST_BPE}")


def phases_agree(document: Document) -> Iterator[Breach]:
    seen: set[str] = set()
    for i, mode in enumerate(document.spec.execution_modes):
        if mode.name in seen:
            yield Breach(("execution_modes", i, "name"), f"a second mode {mode.name!r}", "give each mode its own name")
        seen.add(mode.name)
    transition = document.spec.transition
    if transition and transition.type == "special_token" and transition.token is None:
        yield Breach(("transition", "token"), "special_token needs token", 'add a token, for example "</think>"')
    if transition and transition.type == "budget_exhausted" and transition.token is not None:
        yield Breach(("transition", "token"), "budget_exhausted has no token", "delete it", key=True)


def optimizers_share_nothing(document: Document) -> Iterator[Breach]:
    groups = document.spec.training_hints.optimizer_groups
    for i, pattern in enumerate(groups.adamw if groups else ()):
        if pattern in groups.muon:
            where = ("training_hints", "optimizer_groups", "adamw", i)
            yield Breach(where, f"{pattern!r} is in muon too", "keep it in one group")


RULES = (
    heads_divide,
    rope_keys_need_rope,
    rope_needs_even_heads,
    rope_scaling_fields,
    rope_scaling_bounds,
    yarn_is_whole,
    ffn_width_is_a_number,
    template_parts_agree,
    head_matches,
    tokenizer_matches,
    phases_agree,
    optimizers_share_nothing,
)

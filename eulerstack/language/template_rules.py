"""What the parts of one layer template say about each other; addresses are relative to the template."""

from collections.abc import Iterator

from eulerstack.language.block import Breach
from eulerstack.language.template import Template, state_of


def not_nothing(template: Template) -> Iterator[Breach]:
    if template.mixer.type == "none" and template.ffn.type == "none":
        yield Breach(
            ("ffn", "type"), "neither mixer nor ffn: a layer has at least one of the two", "give it one of the two"
        )


def norm_options(template: Template) -> Iterator[Breach]:
    if template.norm.type == "rmsnorm" and template.norm.bias is not None:
        yield Breach(("norm", "bias"), "rmsnorm has no bias", "delete it, or use layernorm", key=True)
    if template.norm.type == "layernorm" and template.norm.unit_offset:
        yield Breach(("norm", "unit_offset"), "layernorm has no unit_offset", "delete it, or use rmsnorm", key=True)


def hyper_options(template: Template) -> Iterator[Breach]:
    residual = template.residual
    if residual.type == "hyper_connection" and residual.hyper is None:
        yield Breach(("residual", "hyper"), "hyper_connection needs hyper", "add `hyper: {expand: 4}`")
    if residual.type != "hyper_connection" and residual.hyper is not None:
        yield Breach(("residual", "hyper"), f"a {residual.type} residual has no hyper", "delete it", key=True)


def state_is_kept(template: Template) -> Iterator[Breach]:
    kept = state_of(template.mixer)
    for key in ("kv_cache", "ssm_state"):
        declared = template.state and getattr(template.state, key)
        if declared is not None and declared != getattr(kept, key):
            has = "keeps a" if getattr(kept, key) else "keeps no"
            yield Breach(("state", key), f"mixer {template.mixer.type} {has} {key}", "correct it, or leave it out")


TEMPLATE_RULES = (not_nothing, norm_options, hyper_options, state_is_kept)

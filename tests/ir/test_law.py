"""The law of the IR: each article is kept by what normalize makes, and broken by what is not."""

from dataclasses import replace

import pytest

from eulerstack.errors import NormalizationError
from eulerstack.ir.law import verify
from eulerstack.ir.normalizer import normalize_to_ir


def changed(ir, at=0, **changes):
    layers = list(ir.layers)
    layers[at] = replace(layers[at], **changes)
    return replace(ir, layers=tuple(layers))


BREACHES = {
    "no layers": lambda ir: replace(ir, layers=(), schedule=()),
    "a layer out of place": lambda ir: changed(ir, index=1),
    "a layer of another entry": lambda ir: changed(ir, entry=1),
    "a layer scheduled twice": lambda ir: replace(ir, schedule=ir.schedule + ir.schedule),
    "no head_dim": lambda ir: replace(ir, model=replace(ir.model, head_dim=None)),
    "heads that do not divide": lambda ir: replace(ir, model=replace(ir.model, n_kv_heads=3)),
    "half a pair": lambda ir: replace(ir, model=replace(ir.model, head_dim=11)),
    "final norm left open": lambda ir: replace(ir, head=replace(ir.head, final_norm=None)),
    "init left open": lambda ir: replace(ir, training_hints=replace(ir.training_hints, init="normal_0.02")),
    "ties that differ": lambda ir: replace(ir, head=replace(ir.head, tie_weights=False)),
    "norm bias left open": lambda ir: changed(ir, norm=replace(ir.layers[0].norm, bias=None)),
    "a state the mixer does not keep": lambda ir: changed(ir, state=replace(ir.layers[0].state, kv_cache=False)),
    "an option left open": lambda ir: changed(ir, mixer=type(ir.layers[0].mixer)(type="attention")),
    "two kinds of residual": lambda ir: changed(ir, residual=replace(ir.layers[0].residual, type="parallel")),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_named(name, preset):
    ir = normalize_to_ir(preset(schedule=[{"template": "t0", "repeat": 2}]))
    with pytest.raises(NormalizationError):
        verify(BREACHES[name](ir))


def test_the_catalogue_keeps_the_law(catalogue):
    for path in catalogue.values():
        ir = normalize_to_ir(path)
        assert verify(ir) is ir

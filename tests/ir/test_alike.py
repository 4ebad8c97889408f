"""Layers in groups of one content."""

from dataclasses import replace

from eulerstack.ir.alike import alike, same
from eulerstack.ir.normalizer import normalize_to_ir


def test_groups_hold_every_layer_once_whatever_its_place(catalogue):
    layers = normalize_to_ir(catalogue["arch_advanced_jamba"]).layers
    groups = alike(layers)
    assert sorted(layer.index for group in groups for layer in group) == list(range(len(layers)))
    assert [group[0].template for group in groups] == list(dict.fromkeys(layer.template for layer in layers))


def test_any_difference_but_the_place_makes_another_group(catalogue):
    layer, *_ = normalize_to_ir(catalogue["arch_advanced_jamba"]).layers
    others = [
        replace(layer, template="other"),
        replace(layer, norm=replace(layer.norm, type="layernorm")),
        replace(layer, residual=replace(layer.residual, scaling=0.5)),
        replace(layer, mixer=replace(layer.mixer, mamba=replace(layer.mixer.mamba, d_state=32))),
    ]
    assert same(layer, replace(layer, index=7, entry=3))
    assert not any(same(layer, other) for other in others)
    assert len(alike([layer, *others, layer])) == 1 + len(others)

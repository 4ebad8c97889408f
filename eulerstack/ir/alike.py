"""Layers that are built alike, wherever they stand: what is said of one holds for all."""

from collections.abc import Iterable
from dataclasses import fields
from itertools import count

from eulerstack.ir.types import Layer

PLACE = ("index", "entry")
BUILT = tuple(field.name for field in fields(Layer) if field.name not in PLACE)


def same(a: Layer, b: Layer) -> bool:
    return all(getattr(a, name) == getattr(b, name) for name in BUILT)


def alike(layers: Iterable[Layer]) -> list[list[Layer]]:
    """Layers in groups of one template and of the same content."""
    found: dict[str, list[list[Layer]]] = {}
    for layer in layers:
        groups = found.setdefault(layer.template, [])
        group = next((group for group in groups if same(group[0], layer)), None)
        if group is None:
            groups.append(group := [])
        group.append(layer)
    return [group for groups in found.values() for group in groups]


def named(layers: Iterable[Layer]) -> dict[str, list[Layer]]:
    """The same groups by name, in the order of their first layers.

    The first group of a template has the template's name, others of it (overridden or gated ones) `<template>.<n>`.
    """
    layers = tuple(layers)
    places = {id(layer): place for place, layer in enumerate(layers)}
    templates = {layer.template for layer in layers}
    found: dict[str, list[Layer]] = {}
    for group in sorted(alike(layers), key=lambda group: places[id(group[0])]):
        template = group[0].template
        numbered = (name for n in count(1) if (name := f"{template}.{n}") not in templates | found.keys())
        found[next(numbered) if template in found else template] = group
    return found

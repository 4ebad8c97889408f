"""The document that rules look at: checked blocks, and the tree that still knows what was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from eulerstack.language.fields import ABSENT, value_at
from eulerstack.language.schedule import Integrator, Override, Plain
from eulerstack.language.schema import Spec
from eulerstack.language.source import Source
from eulerstack.language.template import Template
from eulerstack.language.where import Where


@dataclass(frozen=True)
class Layers:
    """Layers of one kind in a row: `count` times the template named at `where`, under `override`."""

    where: Where
    name: str
    count: int = 1
    override: Override | None = None


@dataclass(frozen=True)
class Document:
    """`estimate` is the exact number of parameters, where somebody has counted them."""

    spec: Spec
    source: Source
    estimate: int | None = None

    def given(self, *where: str | int) -> bool:
        return value_at(self.source.tree, where) not in (ABSENT, None)

    @property
    def head_dim(self) -> int:
        return self.spec.model.head_dim or self.spec.model.d_model // self.spec.model.n_heads

    def mixers(self) -> Iterator[tuple[Where, Any]]:
        """Every mixer with its address, those inside branched mixers too."""
        for name, template in self.spec.layer_templates.items():
            where: Where = ("layer_templates", name, "mixer")
            yield where, template.mixer
            if template.mixer.type == "branched":
                for branch, mixer in template.mixer.branched.branches.items():
                    yield (*where, "branched", "branches", branch), mixer

    def layers(self) -> Iterator[Layers]:
        """The schedule in order; an integrator's body is one layer, however often it is applied."""
        for i, entry in enumerate(self.spec.layer_schedule):
            where: Where = ("layer_schedule", i)
            if isinstance(entry, Plain):
                yield Layers((*where, "template"), entry.template, entry.repeat, entry.override)
            elif isinstance(entry, Integrator):
                yield Layers((*where, "integrator", "body"), entry.integrator.body)
            else:
                for j, stream in enumerate(entry.parallel):
                    for k, item in enumerate(stream.body):
                        yield Layers((*where, "parallel", j, "body", k, "template"), item.template, item.repeat)

    def scheduled(self) -> Iterator[tuple[Layers, Template]]:
        """The layers whose template exists."""
        for layers in self.layers():
            if template := self.spec.layer_templates.get(layers.name):
                yield layers, template


def echoes(where: Where, wrong: set[Where]) -> bool:
    """Whether an address shares its block with a problem that is already known, and may only repeat it."""
    blocks = [w[:-1] for w in wrong if len(w) > 1]
    return any(where[: len(block)] == block or block[: len(where) - 1] == where[:-1] for block in blocks)

"""The small presets of examples/primitives, which show one primitive of the language each, are sound on paper."""

from pathlib import Path
from runpy import run_path

import pytest

from eulerstack.ir.costs import costs
from eulerstack.ir.shrink import shrink

SOUND = run_path(str(Path(__file__).with_name("soundness.py")))
head, compared, kinds = (SOUND[name] for name in ("head", "compared", "kinds"))
tensors, predicted, numbers = (SOUND[name] for name in ("tensors", "predicted", "numbers"))
REPO = Path(__file__).parents[1]
FOLDER = REPO / "examples" / "primitives"
PRIMITIVES = sorted(FOLDER.glob("*.yml"))
SMALL = 60_000_000
each = pytest.mark.parametrize("path", PRIMITIVES, ids=lambda path: path.stem)


def test_there_are_primitives_and_nothing_else():
    assert len(PRIMITIVES) >= 22
    assert set(FOLDER.iterdir()) == set(PRIMITIVES)


@each
def test_it_is_built_without_a_warning_under_the_name_of_its_file(judged, path):
    assert judged.warnings == ()
    assert judged.unbuilt == ()
    assert judged.ir.name == path.stem


@each
def test_its_head_teaches_compares_and_cites(path):
    found = head(path)
    assert found.pop("schema") == "yaml-language-server: $schema=../../docs/schema.json"
    assert list(found) == ["title", "Teaches", "Compare with", "Papers"]
    names = compared(found["Compare with"])
    assert names, "write: name (what differs), name (what differs)."
    known = {p.stem for p in (*PRIMITIVES, *(REPO / "presets").glob("*.yml"))} - {path.stem}
    assert set(names) <= known


@each
def test_it_is_small_and_has_the_size_it_aims_at(judged):
    assert judged.costs.total <= SMALL
    assert abs(judged.costs.total / judged.ir.model.target_params - 1) <= 0.05


@each
def test_its_small_variant_has_every_kind_of_layer(judged):
    small = shrink(judged.ir)
    assert 25_000 <= costs(small).total <= 90_000
    assert kinds(small) == kinds(judged.ir)


@each
def test_the_tensors_of_the_model_are_those_predicted(path, variant):
    assert tensors(variant) == predicted(variant)
    assert numbers(predicted(variant)[0]) == costs(variant).total

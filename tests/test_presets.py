"""Every preset of the catalogue is sound on paper: no warnings, the size it aims at, the tensors that are predicted."""

import pytest

from eulerstack.compiler.judge import judge
from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.build import build_on_meta
from eulerstack.ir.costs import costs
from eulerstack.ir.shrink import shrink
from eulerstack.ir.tensors import buffers, parameters
from eulerstack.paths import catalogue_dir

PRESETS = sorted(catalogue_dir().glob("*.yml"))
SIZES = {"llm_0p1b": 1e8, "llm_0p8b": 8e8, "arch": 1.2e9}
MINI = 60_000_000
START = {
    "arch_advanced_jamba",
    "arch_advanced_mla",
    "arch_beginner_gpt2",
    "arch_beginner_llama",
    "arch_intermediate_mistral",
    "llm_0p1b_jamba",
    "llm_0p1b_mistral",
    "llm_0p1b_simple",
    "llm_0p8b_moe",
    "llm_0p8b_simple",
}
each = pytest.mark.parametrize("judged", PRESETS, indirect=True, ids=lambda path: path.stem)


@pytest.fixture
def judged(request):
    return judge(request.param)


@pytest.fixture(params=["full", "small"])
def variant(request, judged):
    """The IR at full size, and the one that the sanity run checks."""
    return judged.ir if request.param == "full" else shrink(judged.ir)


def test_the_catalogue_holds_the_presets_to_start_with():
    assert {path.stem for path in PRESETS} >= START


@each
def test_it_is_built_without_a_warning_under_its_own_name(judged, request):
    assert judged.warnings == ()
    assert judged.unbuilt == ()
    assert judged.ir.name == request.node.callspec.id


@each
def test_it_has_the_size_it_aims_at_and_its_name_says(judged):
    target = judged.ir.model.target_params
    assert abs(judged.costs.total / target - 1) <= 0.05
    if judged.ir.name.endswith("_mini"):
        assert judged.costs.total <= MINI
    else:
        (size,) = (size for prefix, size in SIZES.items() if judged.ir.name.startswith(prefix))
        assert target == size


@each
def test_its_small_variant_is_small(judged):
    assert 25_000 <= costs(shrink(judged.ir)).total <= 90_000


@each
def test_its_small_variant_has_every_kind_of_layer(judged):
    def kinds(ir) -> set[tuple]:
        return {(x.template, x.mixer.type, x.ffn.type, bool(getattr(x.mixer, "attention", None))) for x in ir.layers}

    assert kinds(shrink(judged.ir)) == kinds(judged.ir)


@each
def test_the_tensors_of_the_model_are_those_predicted(judged, variant):
    """By name and shape, to the last one; and their sum is what `explain` prints."""
    model = build_on_meta(runtime_config(variant))
    built = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert built == {name: tuple(shape) for name, shape in parameters(variant).items()}
    kept = {name: tuple(t.shape) for name, t in model.state_dict().items() if name not in built}
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert kept.keys() - tied == buffers(variant).keys()
    assert all(kept[name] == tuple(shape) for name, shape in buffers(variant).items())
    assert sum(p.numel() for p in model.parameters()) == costs(variant).total

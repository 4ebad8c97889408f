"""Every preset of the catalogue is sound on paper.

Its head says what is so, its size is the one it aims at, nothing warns, and the tensors of the model are those that are
predicted, at full size and in the small variant.
"""

from pathlib import Path
from runpy import run_path

import pytest

from eulerstack.cli.brief import brief
from eulerstack.compiler.judge import judge
from eulerstack.ir.costs import costs
from eulerstack.ir.shrink import shrink
from eulerstack.paths import catalogue_dir

SOUND = run_path(str(Path(__file__).with_name("soundness.py")))
head, compared, kinds = (SOUND[name] for name in ("head", "compared", "kinds"))
tensors, predicted, numbers = (SOUND[name] for name in ("tensors", "predicted", "numbers"))
PRESETS = sorted(catalogue_dir().glob("*.yml"))
FAMILIES = ("simple", "mistral", "jamba", "moe", "mla")
NAMES = {f"llm_{size}_{family}" for size in ("0p1b", "0p8b", "2b", "4b", "16b") for family in FAMILIES}
NAMES -= {"llm_0p1b_moe"}
LEVELS = {
    "beginner": "gpt2 llama",
    "intermediate": "mistral gemma2 qwen_longctx",
    "advanced": "jamba samba retnet mla mod",
    "expert": "research striped_hyena blackmamba deepseek_moe mixtral_deep ttt_hybrid progressive_stack "
    "dense_to_sparse universal_ode reasoning_r1 titans_memory dual_stream dsv4_v3fallback branched_memory",
}
NAMES |= {f"arch_{level}_{name}" for level, names in LEVELS.items() for name in names.split()}
TWINS = ("blackmamba", "striped_hyena", "deepseek_moe", "ttt_hybrid", "titans_memory", "universal_ode")
MINIS = {f"arch_expert_{name}_mini" for name in (*TWINS, "dsv4_flash", "dsv4_subset", "mhc_moe")}
NAMES |= MINIS
SIZES = {"llm_0p1b": 1e8, "llm_0p8b": 8e8, "llm_2b": 2e9, "llm_4b": 4e9, "llm_16b": 16e9, "arch": 1.2e9}
MINI = 120_000_000
each = pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)


def test_the_catalogue_is_these_presets():
    assert {path.stem for path in PRESETS} == NAMES
    assert len(NAMES) == 57


@each
def test_it_is_built_under_its_own_name(judged, path):
    assert judged.unbuilt == ()
    assert judged.ir.name == path.stem


@each
def test_it_has_no_warning_but_that_of_each_reserved_key(judged):
    warned = [(warning.where, warning.what) for warning in judged.warnings]
    assert sorted(warned) == [(where, "a reserved key") for where in sorted(judged.ir.reserved)]


def test_one_preset_shows_reserved_keys():
    assert [path.stem for path in PRESETS if judge(path).ir.reserved] == ["arch_expert_dsv4_v3fallback"]


@each
def test_its_head_teaches_compares_cites_and_counts(path):
    """Its entries, in order; each title is one line."""
    found = head(path)
    assert list(found) == ["schema", "title", "Teaches", "Compare with", "Papers", "Numbers"]
    assert found["schema"] == "yaml-language-server: $schema=../docs/schema.json"
    assert "\n" not in found["title"]
    assert all(found.values())


@each
def test_what_it_is_compared_with_is_in_the_catalogue(path):
    names = compared(head(path)["Compare with"])
    assert names, "write: name (what differs), name (what differs)."
    assert set(names) <= NAMES - {path.stem}
    assert len(set(names)) == len(names)


@each
def test_the_numbers_at_its_head_are_those_of_explain(judged, path):
    assert head(path)["Numbers"] == brief(judged.ir)


@each
def test_it_has_the_size_it_aims_at_and_its_name_says(judged):
    target = judged.ir.model.target_params
    assert abs(judged.costs.total / target - 1) <= 0.05
    if judged.ir.name in MINIS:
        assert judged.costs.total <= MINI
    else:
        (size,) = (size for prefix, size in SIZES.items() if judged.ir.name.startswith(f"{prefix}_"))
        assert target == size


@each
def test_its_small_variant_is_small_and_has_every_kind_of_layer(judged):
    small = shrink(judged.ir)
    assert 25_000 <= costs(small).total <= 90_000
    assert kinds(small) == kinds(judged.ir)


@each
def test_the_tensors_of_the_model_are_those_predicted(path, variant):
    """By name and shape, to the last one; and their sum is what `explain` prints."""
    assert tensors(variant) == predicted(variant)
    assert numbers(predicted(variant)[0]) == costs(variant).total


@pytest.mark.parametrize("name", TWINS)
def test_a_mini_is_the_twin_of_the_large_one(name, catalogue):
    """The same parts around it: what differs is sizes and depth."""
    large, small = (judge(catalogue[f"arch_expert_{name}{end}"]).ir for end in ("", "_mini"))
    assert kinds(small) == kinds(large)
    assert small.head.type == large.head.type

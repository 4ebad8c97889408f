"""Every mechanism of the language is in a preset of the catalogue, and every other word there or in a primitive.

Words are blocks, listed values, and keys that are off by default; mechanisms are those that choose another computation
or structure: see `words.py`. What no preset needs to say is in LEFT, with the reason.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from eulerstack.compiler.closure import parts
from eulerstack.compiler.runtime import runtime_config
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.language.load import load_preset
from eulerstack.language.schema_json import json_schema

WORDS = run_path(str(Path(__file__).with_name("words.py")))
vocabulary, said, is_mechanism, MANNERS = (WORDS[name] for name in ("vocabulary", "said", "is_mechanism", "MANNERS"))
VALID = Path(__file__).parent / "language" / "valid"
# Patterns of words that no preset has to say.
LEFT = {
    "Compatibility.compile_target=native": "refused until a preset can be a stock class of transformers",
    "Model.dtype=float*": "the format of the file, under which the architecture stays what it is",
    "TokenizerContract.corpus": "a file of the reader's own",
    "TokenizerContract.add_*=*": "how a text is encoded: docs/decisions.md says why the presets do as they do",
    "AttentionOverride.window=inherit": "what an override of attn_drop alone leaves as it is",
    "*.enabled=false": "a block without its effect",
    "RopeScaling.attention_factor": "a number that yarn derives",
    "RopeScaling.beta_*": "a number of yarn with the default of its paper",
    "RopeScaling.truncate=*": "rounding in yarn, as one model or another was trained",
    "Retnet.chunkwise=false": "the same numbers, computed in a slower way",
    "Head.final_norm=*": "derived from the norms of the layers",
    "Norm.bias=true": "what a layernorm has anyway",
    "InitOptions.scheme=normal": "what `normal_0.02` is",
    "QuantAwareTraining.dequant_to=fp4": "a second rounding to what is already the narrowest",
    "BiasCorrection.target_imbalance": "slack that no published model has",
}


@pytest.fixture(scope="module")
def irs(catalogue):
    return {name: normalize_to_ir(path) for name, path in catalogue.items()}


def words_of(presets: dict[str, Path]) -> set[str]:
    return {word for path in presets.values() for word in said(load_preset(path).spec)}


@pytest.fixture(scope="module")
def catalogued(catalogue) -> set[str]:
    """What the 57 say."""
    return words_of(catalogue)


@pytest.fixture(scope="module")
def used(catalogued, primitives) -> set[str]:
    """What they and the primitives say."""
    return catalogued | words_of(primitives)


def missed(words: set[str]) -> list[str]:
    return sorted(word for word in vocabulary() - words if not any(fnmatchcase(word, pattern) for pattern in LEFT))


def test_every_mechanism_of_the_language_is_in_a_preset_of_the_catalogue(catalogued):
    assert [word for word in missed(catalogued) if is_mechanism(word)] == []


def test_every_word_of_the_language_is_in_a_preset(used):
    assert missed(used) == []


def test_nothing_is_left_out_that_the_presets_say(used):
    """Every pattern has a word that would be missed without it."""
    unsaid = vocabulary() - used
    assert [p for p in LEFT if not any(fnmatchcase(word, p) for word in unsaid)] == []


def test_no_key_is_a_manner_whose_words_the_catalogue_all_says(catalogued):
    assert {word.partition("=")[0] for word in vocabulary() - catalogued} >= MANNERS.keys()


@pytest.mark.parametrize(
    "word",
    ["mixers.none", "ResidualOverride", "Merge.type=concat", "Norm.position=post", "Spec.let", "ShapeChange"],
)
def test_what_chooses_another_part_is_a_mechanism(word):
    assert word in vocabulary()
    assert is_mechanism(word)


@pytest.mark.parametrize("word", ["activation=relu", "Retnet.rope=false", "Indexer.dtype=fp8", "Mamba.dt_rank"])
def test_a_switch_a_curve_and_a_format_are_none(word):
    assert word in vocabulary()
    assert not is_mechanism(word)


def test_every_part_that_a_model_may_ship_with_is_in_a_preset(irs, part_modules):
    shipped = {part for ir in irs.values() for part in parts(runtime_config(ir))}
    assert sorted(part_modules - shipped) == []


def test_what_is_said_is_a_word():
    spec = load_preset(VALID / "everything.yml").spec
    words = set(said(spec))
    assert words <= vocabulary()
    assert {"mixers.branched", "Selector.type=top_k", "Hyper", "Integrator", "Attention.window"} <= words
    assert "Attention.window_mode=nsa" not in words


def test_no_listed_value_of_the_schema_is_missing_among_the_words():
    """Found another way: in the JSON Schema, which pydantic makes."""
    listed = {word.partition("=")[2] for word in vocabulary()} - {"", "true", "false"}
    assert listed == set(_listed(json_schema()))


def test_no_block_of_the_schema_is_missing_among_the_words():
    blocks = {name for name, block in json_schema()["$defs"].items() if "properties" in block}
    assert len({word for word in vocabulary() if "=" not in word and _is_block(word)}) == len(blocks) + 1  # and Spec


def _listed(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node.get("enum", ())
        yield from (node[key] for key in ("const",) if isinstance(node.get(key), str))
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _listed(item)


def _is_block(word: str) -> bool:
    return "." not in word or (word.startswith(("mixers.", "ffns.")) and word.count(".") == 1)

"""Every word of the language occurs in a preset of the catalogue, and every part that a model may ship with.

Words are blocks, listed values, and keys that are off by default: see `words.py`. What no preset needs to say is in
LEFT, with the reason.
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
vocabulary, said = WORDS["vocabulary"], WORDS["said"]
VALID = Path(__file__).parent / "language" / "valid"
# Patterns of words that no preset of the catalogue has to say.
LEFT = {
    "Compatibility.compile_target=native": "refused until a preset can be a stock class of transformers",
    "Model.dtype=float*": "the format of the file, under which the architecture stays what it is",
    "TokenizerContract.corpus": "a file of the reader's own",
    "TokenizerContract.add_*=*": "how a text is encoded: docs/decisions.md says why the presets do as they do",
    "State.*": "a declaration of what is so anyway",
    "NormOverride.*": "an override: the word stands in the template's norm, and that the block occurs is asked",
    "FfnOverride.*": "an override: the word stands in the template's ffn",
    "AttentionOverride.*": "an override: the word stands in the template's attention",
    "*.enabled=false": "a block without its effect",
    "RopeScaling.attention_factor": "a number that yarn derives",
    "RopeScaling.beta_*": "a number of yarn with the default of its paper",
    "RopeScaling.truncate=*": "rounding in yarn, as one model or another was trained",
    "Retnet.chunkwise=false": "the same numbers, computed in a slower way",
    "Mamba.chunk_size": "the same numbers, computed in other pieces",
    "Mamba.dt_rank": "a width that Mamba derives",
    "Head.final_norm=*": "derived from the norms of the layers",
    "Norm.bias=true": "what a layernorm has anyway",
    "InitOptions.scheme=normal": "what `normal_0.02` is",
    "QuantAwareTraining.dequant_to=*": "a second rounding, to formats that other words name",
    "BiasCorrection.target_imbalance": "slack that no published model has",
}


@pytest.fixture(scope="module")
def irs(catalogue):
    return {name: normalize_to_ir(path) for name, path in catalogue.items()}


@pytest.fixture(scope="module")
def used(catalogue) -> set[str]:
    return {word for path in catalogue.values() for word in said(load_preset(path).spec)}


def is_left(word: str) -> bool:
    return any(fnmatchcase(word, pattern) for pattern in LEFT)


def test_every_word_of_the_language_is_in_a_preset(used):
    assert sorted(word for word in vocabulary() - used if not is_left(word)) == []


def test_nothing_is_left_out_that_the_presets_say(used):
    """Every pattern has a word that would be missed without it."""
    unsaid = vocabulary() - used
    assert [p for p in LEFT if not any(fnmatchcase(word, p) for word in unsaid)] == []


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

"""The lessons leave nothing out: every part of the language has its place, and every architecture of the catalogue."""

import re
from pathlib import Path

import pytest

from eulerstack.language.schema_json import json_schema
from eulerstack.paths import catalogue_dir

REPO = Path(__file__).resolve().parents[2]
PRIMITIVES = "docs/tutorials/09_primitives.md"
WALKTHROUGH = "docs/tutorials/07_walkthrough.md"
SCHEMA = json_schema()
BLOCKS = SCHEMA["$defs"] | {"Preset": SCHEMA}
# What the blocks of these names choose among has a section for each choice.
SECTIONS = ("__mixers__", "__ffns__", "Memory", "Residual", "Compression")
# A layer, an entry of the schedule or a model has these or has them not.
OPTIONS = {
    "attention_sinks",
    "depth_gating",
    "execution_modes",
    "integrator",
    "latent_dim",
    "mtp",
    "parallel",
    "quant_aware_training",
    "shape_change",
}
# Not of an architecture: words of tokenizers, formats of numbers, optimizers.
ELSEWHERE = {"Model", "TokenizerContract", "TrainingHints"}


def words_of(block: dict) -> dict[str, set[str]]:
    """Key -> the words that may stand there."""
    found = {}
    for key, value in block.get("properties", {}).items():
        options = [value, *value.get("anyOf", [])]
        words = {word for o in options for word in (*o.get("enum", ()), o.get("const")) if isinstance(word, str)}
        if words:
            found[key] = words
    return found


@pytest.fixture
def page() -> str:
    return (REPO / PRIMITIVES).read_text(encoding="utf-8")


@pytest.fixture
def headings(page) -> set[str]:
    """What the headings of its sections have in code marks."""
    return {word for line in re.findall(r"^### (.+)$", page, re.MULTILINE) for word in re.findall(r"`(\w+)`", line)}


def test_every_kind_has_a_section(headings):
    kinds = {
        word
        for name, block in BLOCKS.items()
        if any(part == name or (part[0] == "_" and part in name) for part in SECTIONS)
        for word in words_of(block).get("type", ())
    }
    assert kinds >= {"attention", "hyena", "moe", "retrieval", "hyper_connection", "csa", "none"}
    assert kinds - headings == set()


def test_every_option_has_a_section(headings):
    keys = {key for block in BLOCKS.values() for key in block.get("properties", ())}
    assert keys >= OPTIONS
    assert headings >= OPTIONS


def test_every_word_is_said(page):
    fenced = " ".join(re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    said = set(re.findall(r"\w+", " ".join([fenced, *re.findall(r"`([^`]+)`", prose)])))
    words = {(name, word) for name, block in BLOCKS.items() for at in words_of(block).values() for word in at}
    assert [(name, word) for name, word in sorted(words) if name not in ELSEWHERE and word not in said] == []


def test_every_example_of_a_primitive_is_shown(page):
    shown = set(re.findall(r"^# in: (\w+)$", page, re.MULTILINE))
    examples = {path.stem for path in (REPO / "examples" / "primitives").glob("*.yml")}
    assert examples
    assert examples - shown == set()


def test_the_walk_passes_every_architecture():
    page = (REPO / WALKTHROUGH).read_text(encoding="utf-8")
    architectures = {path.stem for path in catalogue_dir().glob("arch_*.yml")}
    named = set(re.findall(r"\barch_\w+", page))
    assert architectures
    assert architectures - named == set()
    assert named - architectures == set()

"""Whatever points into the documentation points at something: the `See:` lines of errors, and the documents' links."""

import ast
import re
from pathlib import Path

import pytest

from eulerstack.language.where import REFERENCE, SECTIONS, TEMPLATE_SECTIONS

REPO = Path(__file__).resolve().parents[2]
TARGET = re.compile(r"(?:docs/[\w/]+|README|CHANGELOG)\.md(?:#[\w-]+)?")
LINK = re.compile(r"\]\(([^)\s]+)\)")
DOCUMENTS = sorted(p for p in [*REPO.glob("*.md"), *REPO.glob("docs/**/*.md")])


def targets(path: Path) -> set[str]:
    """The texts in a source file that are a place in the documentation and nothing else."""
    texts = (n.value for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Constant))
    return {text for text in texts if isinstance(text, str) and TARGET.fullmatch(text)}


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def is_there(target: str, source: Path = REPO / "README.md") -> bool:
    """Whether a link in the document `source` leads somewhere."""
    name, _, anchor = target.partition("#")
    path = source.parent / name if name else source
    return path.exists() and (not anchor or anchor in anchors(path))


SOURCES = {path: targets(path) for path in sorted((REPO / "eulerstack").rglob("*.py"))}
SEEN = sorted(set().union(*SOURCES.values()) | {f"{REFERENCE}#{s}" for s in (*SECTIONS, *TEMPLATE_SECTIONS)})


@pytest.fixture(scope="module")
def given() -> set[str]:
    """The pages that `eulerstack init` puts into a workspace."""
    from eulerstack.cli.init_command import pages

    return set(pages())


def test_the_sources_do_point_there():
    assert {target.partition("#")[0] for target in SEEN} >= {
        "docs/building.md",
        "docs/language.md",
        "docs/tutorials/02_presets.md",
        "docs/tutorials/04_compile_and_explain.md",
        "docs/tutorials/05_prepare_data.md",
        "docs/tutorials/06_sanity_training.md",
    }


@pytest.mark.parametrize("target", SEEN)
def test_what_an_error_points_at_exists(target):
    assert is_there(target), [str(path.relative_to(REPO)) for path, found in SOURCES.items() if target in found]


@pytest.mark.parametrize("target", SEEN)
def test_what_an_error_points_at_is_in_every_workspace(target, given):
    """The decisions of the checkout are not, and the README there is another, without its sections."""
    assert target == "README.md" or target.partition("#")[0] in given


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))
def test_the_links_of_a_document_exist(path):
    links = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if not link.startswith("http")]
    assert [link for link in links if not is_there(link, path)] == []


def test_a_place_that_is_not_there_is_noticed(given):
    assert not is_there("README.md#nothing-here")
    assert not is_there("docs/nothing.md")
    assert given.isdisjoint({"README.md", "CHANGELOG.md", "docs/decisions.md"})
    assert is_there("README.md#your-own-presets")
    assert is_there("docs/tutorials/02_presets.md#your-own-presets")

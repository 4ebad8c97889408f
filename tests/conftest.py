"""What tests of all rooms share: a workspace of one's own, and small exports of the catalogue."""

import os
from functools import cache
from pathlib import Path

# Before torch is imported: threads that wait for each other in several test processes at once cost more than they give.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from eulerstack.compiler.closure import EXPORTS, MODELING
from eulerstack.compiler.judge import judge
from eulerstack.ir.shrink import shrink

REPO = Path(__file__).resolve().parents[1]


def pytest_addoption(parser):
    """The options of the gated suites, tests/integration/. Here, for a plain `pytest` asks no deeper conftest."""
    group = parser.getgroup("full size", "presets at full size (docs/tutorials/06_sanity_training.md)")
    for suite in ("llm", "arch", "mini"):
        group.addoption(f"--{suite}-presets", default="all", metavar="NAMES", help="`all`, or names with commas")
        group.addoption(f"--{suite}-steps", default="20", metavar="N", help="how many steps to train (20)")
        group.addoption(f"--{suite}-lr", default="1e-4", metavar="RATE", help="the learning rate (1e-4)")


@pytest.fixture(autouse=True)
def workspace(tmp_path_factory, monkeypatch):
    """Every test writes its cache and artifacts into one folder of the run, never into the checkout."""
    home = tmp_path_factory.getbasetemp() / "workspace"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("EULERSTACK_HOME", str(home))
    monkeypatch.delenv("EULERSTACK_DEVICE", raising=False)  # it is for the gated suites
    return home


@pytest.fixture(scope="session")
def catalogue() -> dict[str, Path]:
    """The presets of the catalogue by name."""
    return {path.stem: path for path in sorted((REPO / "presets").glob("*.yml"))}


@pytest.fixture(scope="session")
def primitives() -> dict[str, Path]:
    """The small presets that show one primitive each, by name."""
    return {path.stem: path for path in sorted((REPO / "examples" / "primitives").glob("*.yml"))}


@pytest.fixture(scope="session")
def part_modules() -> set[str]:
    """The modeling files that a model may name as a part: what no test of parts may leave out."""
    stems = {path.stem for path in MODELING.glob("*.py")}
    return {stem for stem in stems if stem in EXPORTS or stem.partition("_")[0] in EXPORTS}


@pytest.fixture
def judged(path):
    """The preset file `path`, checked and counted; once for all tests that ask."""
    return _judged(path)


@pytest.fixture(params=["full", "small"])
def variant(request, judged):
    """The IR of `judged` at full size, and the one that the sanity run checks."""
    return judged.ir if request.param == "full" else shrink(judged.ir)


_judged = cache(judge)

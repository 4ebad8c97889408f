"""The house rules that a machine can hold: sizes, empty packages, one test file per module, one file per kind."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "eulerstack"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py")
# The Python files of the whole repository, whatever lies about untracked.
SOURCES = sorted(
    REPO / name
    for name in subprocess.run(
        ["git", "ls-files", "*.py"], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout.split()
)


def name_of(path: Path) -> str:
    return str(path.relative_to(REPO))


def functions(path: Path) -> list[ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def length(node: ast.FunctionDef) -> int:
    """Lines of the body: a signature of many keywords is a table, not code."""
    return node.end_lineno - node.body[0].lineno + 1


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_file_is_at_most_250_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 250


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_function_is_over_70_lines(path):
    assert [f.name for f in functions(path) if length(f) > 70] == []


def test_functions_are_short():
    lengths = sorted(length(f) for path in MODULES for f in functions(path))
    assert lengths[len(lengths) // 2] <= 12
    assert lengths[int(len(lengths) * 0.9)] <= 35


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=name_of)
def test_packages_are_empty_but_for_the_version(path):
    text = path.read_text(encoding="utf-8")
    assert not text if path.parent != PACKAGE else "__version__" in text


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_no_room_is_called_utils():
    assert [p for p in MODULES if p.stem in ("utils", "helpers", "common", "misc")] == []


def test_a_mixer_file_is_at_most_200_lines():
    long = [p.name for p in (PACKAGE / "modeling").glob("mixer_*.py") if len(p.read_text().splitlines()) > 200]
    assert long == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_skip_or_an_ignore_has_a_reason(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if "# noqa:" in line and '"' not in line.split("# noqa:")[0][-1:]:
            assert re.search(r"# noqa: [A-Z0-9, ]+? {1,2}\W*[a-z]", line), f"{name_of(path)}:{number} gives no reason"


def test_the_catalogue_is_presets_only():
    assert {p.suffix for p in (REPO / "presets").iterdir()} == {".yml"}

"""The examples run as they are, each in a process of its own; what needs no package gets none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eulerstack.compiler.judge import judge

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PRIMITIVES = sorted((EXAMPLES / "primitives").glob("*.yml"))
WITHOUT = (
    "import runpy, sys; sys.modules[{!r}] = None; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a script in an empty folder, in a Python that cannot import `without`; what it printed."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(EXAMPLES.parent), os.environ.get("PYTHONPATH")]))
    )
    monkeypatch.delenv("EULERSTACK_HOME")
    monkeypatch.setenv("EULERSTACK_CACHE", "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))

    def go(script: str, *args: str, without: str = "nothing", status: int = 0) -> str:
        process = subprocess.run(
            [sys.executable, "-c", WITHOUT.format(without), str(EXAMPLES / script), *args],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert process.returncode == status, process.stderr
        return process.stdout if status == 0 else process.stderr

    return go


def test_a_preset_is_exported_and_a_stranger_generates_with_it(run, tmp_path):
    preset = str(EXAMPLES / "primitives" / "retnet.yml")
    said = run("01_compile_and_export.py", preset, "out", "--small")
    assert f"{judge(Path(preset)).costs.total:,} parameters" in said
    assert (tmp_path / "out" / "mixer_retnet.py").is_file()
    said = run("02_load_and_generate.py", "out", "--max-new-tokens", "9", without="eulerstack")
    assert re.search(r"^9 tokens; furthest below the best logit of a full pass: \S+$", said, re.MULTILINE)


def test_a_stranger_really_has_no_package(run, tmp_path):
    (tmp_path / "it.py").write_text("import eulerstack.errors")
    assert "No module named 'eulerstack.errors'" in run(str(tmp_path / "it.py"), without="eulerstack", status=1)


def test_architectures_are_compared_without_torch(run):
    lines = run("03_compare_architectures.py", without="torch").splitlines()
    assert lines[0].split()[0] == "preset"
    found = {line.split()[0] for line in lines[1:]}
    assert len(found) > 3
    for name in found:
        cost = judge(EXAMPLES.parent / "presets" / f"{name}.yml").costs
        assert f" {cost.total / 1e6:,.1f} M" in next(line for line in lines if line.startswith(f"{name} "))


def test_only_lengths_in_reach_are_compared(run):
    mine = str(EXAMPLES / "primitives" / "retnet.yml")
    lines = run("03_compare_architectures.py", mine, "--lengths", "1024", "4096", "8192", without="torch").splitlines()
    assert [re.search(r" ([\d,]+)  +\S+ MiB", line)[1] for line in lines[1:]] == ["1,024", "4,096"]


@pytest.mark.parametrize("script", ["01_compile_and_export.py", "03_compare_architectures.py"])
def test_a_mistake_is_said_in_three_lines(run, script):
    args = ("nothing", "out") if script.startswith("01") else ("nothing",)
    said = run(script, *args, status=1)
    assert said.startswith("nothing: ValidationError: no such preset\nFix: ")
    assert "Traceback" not in said


def test_the_page_names_every_example():
    page = (EXAMPLES / "README.md").read_text()
    links = set(re.findall(r"\]\(([^)]+)\)", page))
    assert {link for link in links if link.endswith(".py")} == {path.name for path in EXAMPLES.glob("*.py")}
    assert [link for link in links if not (EXAMPLES / link).exists()] == []


def test_the_page_says_how_large_the_primitives_are():
    sizes = [judge(path).costs.total for path in PRIMITIVES]
    page = (EXAMPLES / "README.md").read_text()
    assert f"{min(sizes) // 10**6} M to {-(-max(sizes) // 10**6)} M parameters" in page

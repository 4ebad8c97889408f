"""The README says what is true: its preset is valid, its commands run, its error is the one that is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from eulerstack.compiler.judge import judge
from eulerstack.paths import catalogue_dir

README = "README.md"


@pytest.fixture
def block(blocks):
    """A function: the only block of a language under a heading."""

    def find(heading: str, language: str) -> str:
        (found,) = (b for b in blocks(README) if (b.heading, b.language) == (heading, language))
        return found.text

    return find


@pytest.fixture
def tiny(block, place) -> Path:
    """The smallest preset, in the file that the error example names."""
    (place / "presets").mkdir()
    path = place / "presets" / "tiny.yml"
    path.write_text(block("Your own presets", "yaml"))
    return path


def test_its_preset_is_valid_and_built(tiny):
    judged = judge(tiny)
    assert judged.warnings == ()
    assert judged.unbuilt == ()
    assert len(judged.ir.layers) == 4


def test_its_error_is_the_one_that_is_printed(tiny, block, shell):
    """An ellipsis stands for what was left out."""
    tiny.write_text(tiny.read_text().replace("window", "windw"))
    printed = shell("eulerstack validate --preset presets/tiny.yml", status=1)
    assert re.fullmatch(re.escape(block("Your own presets", "")).replace(r"\.\.\.", ".*"), printed)


def test_its_commands_run(block, shell):
    for line in block("Look before you build", "bash").splitlines():
        assert line.startswith("eulerstack ")
        assert shell(line)


def test_its_workspace_is_made_and_checked(block, shell, place):
    said = shell(block("Your own presets", "bash"))
    assert re.search(r"^cpu_sanity:my_model +made .* PASS: ", said, re.MULTILINE)
    assert (place / "my_models" / "build" / "my_model" / "cpu_sanity.json").is_file()


def test_the_presets_it_names_exist(blocks):
    named = {name for b in blocks(README) for name in re.findall(r"\b(?:llm|arch)_\w+", b.text)}
    assert named
    assert named <= {path.stem for path in catalogue_dir().glob("*.yml")}


def test_a_stranger_loads_the_directory_as_it_says(block, place, tmp_path_factory):
    """The small variant in the place of the full one."""
    from eulerstack.export.model import export_model
    from eulerstack.ir.shrink import shrink

    ir = judge(catalogue_dir() / "llm_0p1b_simple.yml").ir
    export_model(shrink(ir), "llm_0p1b_simple", place / "build" / "llm_0p1b_simple" / "hf", variant="small")
    code = block("What to do with the directory", "python") + "print(model(**tokenizer('a b', return_tensors='pt')))"
    process = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=place,
        env={"PATH": "", "HF_HOME": str(tmp_path_factory.mktemp("home")), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "logits" in process.stdout

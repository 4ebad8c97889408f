"""The tutorials run as they are written, block after block, in one empty workspace.

A block without a language is what the block above it prints, its numbers aside; one marked `text` is only shown.
"""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from eulerstack.stages.gpu_sanity import devices

TUTORIALS = sorted(f"docs/tutorials/{path.name}" for path in Path(__file__).parents[2].glob("docs/tutorials/*.md"))
GPU = "GPU mode"


@pytest.fixture
def follow(shell):
    """A function that runs blocks in order."""

    def run(blocks, name: str) -> None:
        scope: dict = {"__name__": "tutorial"}
        printed = ""
        for block in blocks:
            if block.language == "bash":
                printed = shell(block.text)
            elif block.language == "python":
                out = StringIO()
                with redirect_stdout(out):
                    exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), scope)
                printed = out.getvalue()
            elif block.language == "":
                assert without_numbers(printed) == without_numbers(block.text), f"{name}:{block.line}\n{printed}"
            else:
                assert block.language == "text", f"{name}:{block.line} is of a language that nothing runs"

    return run


def without_numbers(text: str) -> list[str]:
    return [re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "#", line.rstrip()) for line in text.splitlines()]


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_on_the_cpu(blocks, follow, name):
    chosen = [block for block in blocks(name) if block.heading != GPU]
    assert {block.language for block in chosen} >= {"bash", "python"}
    follow(chosen, name)


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_on_a_gpu(blocks, follow, name):
    import torch

    assert any(block.heading == GPU for block in blocks(name))
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: the blocks under 'GPU mode' did not run")
    follow(blocks(name), name)


@pytest.mark.skipif(bool(devices()), reason="there is a CUDA device, so the stage runs")
def test_without_a_device_the_gpu_stage_says_that_it_is_skipped(shell):
    """And not that it passed."""
    said = shell("doit gpu_sanity:llm_0p1b_simple")
    assert re.search(r"^gpu_sanity:llm_0p1b_simple +skipped .* no CUDA device$", said, re.MULTILINE)
    assert "skipped" in shell("doit list gpu_sanity:llm_0p1b_simple")

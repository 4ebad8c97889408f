"""The fenced blocks of a Markdown file, and an empty workspace to run them in."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import eulerstack

REPO = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^##? (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """`heading` is the nearest one above it, `line` the first line of `text` in the file."""

    language: str
    text: str
    heading: str
    line: int


def blocks(path: Path) -> list[Block]:
    source = path.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(source):
        headings = HEADING.findall(BLOCK.sub("", source[: match.start()]))
        line = source.count("\n", 0, match.start(2)) + 1
        found.append(Block(match[1], match[2], headings[-1] if headings else "", line))
    return found


@pytest.fixture(name="blocks", scope="session")
def _blocks():
    """A function: the blocks of a file of the repository."""
    return lambda name: blocks(REPO / name)


@pytest.fixture
def place(tmp_path, tmp_path_factory, monkeypatch) -> Path:
    """A workspace without presets of its own, so with the catalogue's; the current directory. All share one cache.

    `$EXAMPLES` is the `examples/` of the checkout.
    """
    from eulerstack.cli.init_command import DODO

    (tmp_path / "dodo.py").write_text(DODO)
    monkeypatch.setenv("EULERSTACK_HOME", "")
    monkeypatch.delenv("EULERSTACK_BUILD", raising=False)
    monkeypatch.setenv("EULERSTACK_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("EXAMPLES", str(REPO / "examples"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shell(tmp_path_factory, place):
    """A function that runs bash with `eulerstack`, `doit` and `python`; the output of a script that must succeed."""
    tools = tmp_path_factory.mktemp("bin")
    for name, options in (("eulerstack", "-m eulerstack.cli.main"), ("doit", "-m doit"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {options} "$@"\n')
        (tools / name).chmod(0o755)
    package = str(Path(eulerstack.__file__).parents[1])
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": package}

    def run(script: str, status: int = 0) -> str:
        process = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert process.returncode == status, process.stdout
        assert "Traceback" not in process.stdout, process.stdout
        return process.stdout

    return run

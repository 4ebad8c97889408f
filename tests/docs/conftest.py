"""The fenced blocks of a Markdown file, an empty workspace to run them in, and what is printed beside what is shown."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import eulerstack
from eulerstack.data.sample import corpus_digest

REPO = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The reference manual with which the documents were written. It changes with Python, and what is made of it too.
MANUAL = "9b695f1733014cf9"
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
# Fractions that are measured: times by their unit, losses and distances by a word in their line.
SECONDS = re.compile(r" ?s\b")
LOSSES = re.compile(r"\bloss|\bapart\b|\d -> \d", re.IGNORECASE)
# The size of an export grows with every line of code that ships with it.
OF_A_DIRECTORY = re.compile(r"parameters, ([\d.]+) [KMG]i?B$")
OF_SHAPES = re.compile(r" (?:layers|parameters)\b")
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


def measured(number: re.Match) -> bool:
    """Whether a number of a line is a time, a loss or an error, which another machine may not print."""
    whole = number[0].replace(",", "").isdigit()
    after = number.string[number.end() :]
    return not whole and bool("e" in number[0] or SECONDS.match(after) or LOSSES.search(number.string))


def settled(number: re.Match, manual: str) -> bool:
    """Whether every machine prints a number of a line."""
    size = OF_A_DIRECTORY.search(number.string)
    if measured(number) or (size and size.start(1) == number.start()):
        return False
    # Another text has other counts; what shapes decide stays.
    by_shape = OF_SHAPES.match(number.string, number.end())
    counted = "," in number[0] and not number.string.startswith(" tokens", number.end())
    return manual == MANUAL or bool(by_shape) or counted


def plain(text: str, manual: str) -> list[str]:
    """Lines without what another machine, or a Python with another manual, prints in the place of it."""
    lines = text.splitlines()
    return [" ".join(NUMBER.sub(lambda n: n[0] if settled(n, manual) else "#", line).split()) for line in lines]


def same(printed: str, shown: str, manual: str | None = None) -> bool:
    """Whether a block shows what was printed; a line `...` stands for any lines."""
    manual = manual or corpus_digest()[:16]
    lines = (r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in plain(shown, manual))
    return bool(re.fullmatch("".join(lines), "".join(f"{line}\n" for line in plain(printed, manual))))


@pytest.fixture(name="same", scope="session")
def _same():
    return same


@pytest.fixture(name="measures", scope="session")
def _measures():
    """A function: whether a text has a number that is measured."""
    return lambda text: any(measured(n) for line in text.splitlines() for n in NUMBER.finditer(line))


@pytest.fixture(name="blocks", scope="session")
def _blocks():
    """A function: the blocks of a file of the repository."""
    return lambda name: blocks(REPO / name)


@pytest.fixture
def place(tmp_path, tmp_path_factory, monkeypatch, request) -> Path:
    """A workspace without presets of its own, so with the catalogue's; the current directory.

    The tests of a module share a cache. Those of another do not: a document shows what is made, not what is restored.

    `$EXAMPLES` is the `examples/` of the checkout.
    """
    from eulerstack.cli.init_command import DODO

    (tmp_path / "dodo.py").write_text(DODO)
    monkeypatch.setenv("EULERSTACK_HOME", "")
    monkeypatch.delenv("EULERSTACK_BUILD", raising=False)
    monkeypatch.setenv("EULERSTACK_CACHE", str(tmp_path_factory.getbasetemp() / request.path.stem / "cache"))
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

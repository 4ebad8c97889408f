"""The gated suites: real presets at full size, through the stages and the workers that doit uses.

| suite | gate | chosen by `all` |
|---|---|---|
| llm | `RUN_LLM_E2E=1` | `llm_*` of at most 2 B parameters |
| arch | `RUN_ARCH_E2E=1` | `arch_*` that are no minis |
| mini | `RUN_EXPERT_MINI_E2E=1` | `arch_*_mini` |

A test module of a suite says `SUITE = "llm"` and takes the fixtures `preset` and `check_at_full_size`. The options of
the command line are in tests/conftest.py, where pytest looks for them.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from eulerstack import paths
from eulerstack.errors import EulerStackError, ValidationError
from eulerstack.graph.step import Step
from eulerstack.graph.worker import Pool
from eulerstack.graph.workplace import Workplace
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.stages import gpu_sanity

LARGEST = 2_000_000_000  # of `llm_*`: what one GPU trains, and a patient CPU with memory enough
PACKAGE = "eulerstack.stages"
# As this run was started; every test has its own.
WORKSPACE, DEVICE = paths.workspace(), os.environ.get("EULERSTACK_DEVICE", "")
WEIGHTS = ("objects", "trees", "results")  # what a cache keeps of a preset; the rest is shared and small


@dataclass(frozen=True)
class Suite:
    gate: str
    names: str  # a pattern
    largest: float = float("inf")

    def chosen(self, presets: dict[str, Path]) -> list[Path]:
        """The presets that `all` means."""
        named = [path for name, path in presets.items() if re.fullmatch(self.names, name)]
        return [path for path in named if self.largest == float("inf") or size(path) <= self.largest]


SUITES = {
    "llm": Suite("RUN_LLM_E2E", "llm_.*", LARGEST),
    "arch": Suite("RUN_ARCH_E2E", "arch_.*(?<!_mini)"),
    "mini": Suite("RUN_EXPERT_MINI_E2E", "arch_.*_mini"),
}


def size(preset: Path) -> int:
    """Parameters: those it aims at, else those it has. 0 for a preset with an error: its test says which."""
    try:
        ir = normalize_to_ir(preset)
        return ir.model.target_params or costs(ir).total
    except EulerStackError:
        return 0


def asked(config: pytest.Config, suite: str) -> list[Path]:
    """The presets that the command line chooses. UsageError for a name that there is not, with the nearest."""
    option = f"--{suite}-presets"
    names = [name.strip() for name in config.getoption(option).split(",") if name.strip()]
    if not names:
        raise pytest.UsageError(f"{option} names no preset: give `all`, or names with commas between them")
    if names == ["all"]:
        return SUITES[suite].chosen(paths.presets_in(paths.presets_dir()))
    try:
        return [paths.find_preset(name) for name in dict.fromkeys(names)]
    except ValidationError as error:
        raise pytest.UsageError(f"{option}: {error}") from None


def is_open(suite: str) -> bool:
    return os.environ.get(SUITES[suite].gate, "") not in ("", "0")


def why_not(suite: str) -> str:
    """Why the tests of a suite are skipped, "" if they run."""
    if not is_open(suite):
        return f"set {SUITES[suite].gate}=1 to run it"
    if not gpu_sanity.device():
        return "no CUDA device found, and EULERSTACK_DEVICE names none"
    return ""


def _configure(config: pytest.Config, suite: str, patch: pytest.MonkeyPatch) -> None:
    """Let the stage see the steps and the learning rate of the suite."""
    patch.setenv("EULERSTACK_STEPS", config.getoption(f"--{suite}-steps"))
    patch.setenv("EULERSTACK_LR", config.getoption(f"--{suite}-lr"))


def pytest_configure(config: pytest.Config) -> None:
    """A mistake in the command is said before anything runs."""
    for suite in SUITES:
        if is_open(suite) or config.getoption(f"--{suite}-presets") != "all":
            asked(config, suite)
        with pytest.MonkeyPatch.context() as patch:
            _configure(config, suite, patch)
            try:
                gpu_sanity.options()
            except ValidationError as error:
                raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each preset of the suite of its module."""
    suite = getattr(metafunc.module, "SUITE", None)
    if suite and "preset" in metafunc.fixturenames:
        why = why_not(suite)
        marks = [pytest.mark.skip(reason=why)] if why else []
        chosen = asked(metafunc.config, suite)
        metafunc.parametrize("preset", [pytest.param(path, id=path.stem, marks=marks) for path in chosen])


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Where the cache and the artifacts of all presets go (`--basetemp` moves it)."""
    return tmp_path_factory.mktemp("full_size")


@pytest.fixture(scope="session")
def pool(folder):
    """The warm workers, shared: they import torch once."""
    made = Pool(folder / "cache" / "logs")
    yield made
    made.close()


@pytest.fixture
def place(folder, pool, request, monkeypatch) -> Workplace:
    """The user's own workspace, with cache and artifacts elsewhere; the weights go when the test is over."""
    monkeypatch.setenv("EULERSTACK_HOME", str(WORKSPACE))
    monkeypatch.setenv("EULERSTACK_DEVICE", DEVICE)
    monkeypatch.setenv("EULERSTACK_CACHE", str(folder / "cache"))
    monkeypatch.setenv("EULERSTACK_BUILD", str(folder / "build"))
    _configure(request.config, request.module.SUITE, monkeypatch)
    made = Workplace(PACKAGE)
    made.pool = pool
    yield made
    for name in WEIGHTS:
        shutil.rmtree(folder / "cache" / name, ignore_errors=True)


def steps_to(stage_name: str, preset: Path, place: Workplace, known: dict[str, Step]) -> Step:
    """The step of a stage, with those above it, as the tasks of doit have them; `known` collects them in order."""
    if stage_name not in known:
        stage = import_module(f"{PACKAGE}.{stage_name}")
        above = tuple(steps_to(name, preset, place, known) for name in stage.AFTER)
        known[stage_name] = Step(stage, preset, place, above)
    return known[stage_name]


def _build(steps: Iterable[Step]) -> str:
    """What went wrong and where, "" for nothing."""
    for step in steps:
        try:
            if not step.is_fresh():
                step.build()
        except EulerStackError as error:
            return f"failed at {step.stage_name}\n{error}"
    return ""


@pytest.fixture
def check_at_full_size(place):
    """A function: preset -> the verdict of gpu_sanity, with a line about it. A failed stage fails the test."""

    def run(preset: Path) -> dict:
        began, steps = time.monotonic(), {}
        last = steps_to("gpu_sanity", preset, place, steps)
        if wrong := _build(steps.values()):
            pytest.fail(f"{preset.stem} {wrong}", pytrace=False)
        log = (place.cache / "logs" / "gpu_sanity" / f"{preset.stem}.log").read_text(encoding="utf-8", errors="replace")
        parameters = json.loads((last.build_folder / "compile.json").read_text())["costs"]["total"]
        peak = re.findall(r"^peak memory: .*$", log, re.MULTILINE)[-1]
        seconds = time.monotonic() - began
        print(f"\n{preset.stem}: {parameters:,} parameters, {last.summary}, {peak}, {seconds:.0f} s", flush=True)
        return json.loads((last.build_folder / "gpu_sanity.json").read_text())

    return run

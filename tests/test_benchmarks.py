"""The benchmarks run, at their smallest; what they measure is nobody's promise here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import eulerstack.modeling
from eulerstack.compiler.closure import parts

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture
def mixers(monkeypatch):
    monkeypatch.syspath_prepend(REPO / "benchmarks")
    import mixers

    return mixers


def test_every_mixer_and_feed_forward_file_has_its_case(mixers):
    folder = Path(eulerstack.modeling.__path__[0])
    files = {path.stem for role in ("mixer", "ffn") for path in folder.glob(f"{role}_*.py")}
    timed = {part for case in mixers.CASES.values() for part in parts(mixers.payload(case, mixers.SIZES["small"]))}
    assert files <= timed


def test_both_sides_have_the_same_size(mixers):
    """The parameters differ by no more than the norms and biases that only one of them has."""
    for name, case in mixers.CASES.items():
        sides = mixers.models(case, mixers.SIZES["small"])
        ours, theirs = (sum(p.numel() for p in sides[side].parameters()) for side in ("ours", "theirs"))
        assert all(case.aims) == (name in ALIKE)
        if name in ALIKE:
            assert abs(ours - theirs) <= 0.01 * theirs, name


ALIKE = {"attention", "window", "moe", "deepseek", "mamba1", "mamba2", "jamba"}


def test_peak_is_counted_to_the_byte(mixers):
    """One layer of known tensors: what is held at once is the output, its square's factor and the gradients."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1000, 500))

        def forward(self, input_ids, labels, use_cache):
            class Out:
                loss = (self.weight * 2.0).sum()

            return Out

    found = mixers.peak(Layer(), torch.zeros(1, 1, dtype=torch.long))
    assert 2_000_000 <= found <= 4_100_000  # the product, then the gradient, of 2 MB each


@pytest.mark.parametrize(
    ("script", "rest", "shows"), [("mixers", ["--only", "moe", "jamba"], "ratio"), ("export", [], "transformers")]
)
def test_it_runs(script, rest, shows):
    environment = os.environ | {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(REPO / "benchmarks" / f"{script}.py"), "--small", "--repeat", "1", *rest]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert shows in run.stdout

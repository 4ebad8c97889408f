"""A hybrid model small enough to check in a second, as a Hugging Face directory, and the script that checks it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import eulerstack
from eulerstack.data.sample import corpus
from eulerstack.export.model import export_model
from eulerstack.ir.normalizer import normalize_to_ir

CHECKS = Path(eulerstack.__file__).parent / "training" / "checks.py"
WARM = Path(__file__).parent / "warm.py"
HYBRID = {
    "schema_version": 1,
    "model": {
        "name": "hybrid",
        "d_model": 24,
        "vocab_size": 300,
        "max_seq_len": 64,
        "n_heads": 4,
        "n_kv_heads": 2,
        "d_ff": 20,
        "dtype": "float32",
    },
    "tokenizer_contract": {"type": "byte_bpe"},
    "embedding": {"type": "learned", "positional": "rope"},
    "layer_templates": {
        "state": {
            "mixer": {"type": "mamba", "mamba": {"variant": "mamba2", "d_state": 8, "head_dim": 8}},
            "ffn": {"type": "gated_mlp"},
        },
        "local": {
            "mixer": {"type": "attention", "attention": {"window": 7}},
            "ffn": {"type": "moe", "moe": {"experts": 3, "top_k": 2, "d_ff": 16}},
        },
    },
    "layer_schedule": [
        {"template": "state"},
        {"template": "local"},
        {"template": "local", "override": {"attention": {"window": None}}},
    ],
    "head": {"type": "causal_lm"},
    "training_hints": {"init": {"scheme": "normal", "std": 0.1}},
}


@pytest.fixture(scope="session")
def hybrid_ir():
    return normalize_to_ir(HYBRID)


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_bytes(corpus())
    return path


@pytest.fixture(scope="session")
def hybrid(hybrid_ir, tmp_path_factory) -> Path:
    """The directory; copy it before changing anything."""
    folder = tmp_path_factory.mktemp("export") / "hybrid"
    export_model(hybrid_ir, "hybrid", folder)
    return folder


@pytest.fixture(scope="session")
def stranger(tmp_path_factory):
    """A function that runs a command in a Python that has torch and transformers and cannot find this package."""
    home = tmp_path_factory.mktemp("stranger")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EULERSTACK"))}
    environment = kept | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(*command: object, stdin: str = "") -> None:
        process = subprocess.run(
            [sys.executable, "-I", *map(str, command)],
            cwd=home,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        assert "Traceback" not in process.stderr, process.stderr
        assert "custom code" not in process.stderr + process.stdout

    return run


@pytest.fixture(scope="session")
def judge(stranger, corpus_file, tmp_path_factory):
    """A function: name -> verdict, for name -> directory, or directory and options in place of the corpus."""

    def verdicts(folders: dict[str, Path | list]) -> dict[str, dict]:
        out, jobs = tmp_path_factory.mktemp("verdicts"), []
        for name, given in folders.items():
            folder, *options = given if isinstance(given, list) else [given, "--corpus", corpus_file]
            jobs.append([str(part) for part in (folder, out / name, *options, "--steps", "6")])
        stranger(WARM, CHECKS, stdin=json.dumps(jobs))
        return {name: json.loads((out / name).read_text(encoding="utf-8")) for name in folders}

    return verdicts


@pytest.fixture(scope="session")
def sabotaged(hybrid, tmp_path_factory):
    """A function that copies the directory and appends code to its entry file."""

    def copy(name: str, code: str) -> Path:
        folder = tmp_path_factory.mktemp("sabotage") / name
        shutil.copytree(hybrid, folder)
        (entry,) = folder.glob("modeling_eulerstack_*.py")
        entry.write_text(f"{entry.read_text()}\n\n{code}")
        return folder

    return copy

"""`sanity/` -> `cpu_sanity.json`: the verdict on the structure, from a process that cannot import eulerstack."""

import json
from pathlib import Path

AFTER = ("sanity_export",)
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")
WORKER = "stranger"
MODELING = "meaning"
TIME_LIMIT = 600
OUTPUTS = ("cpu_sanity.json",)
TRAINING = Path(__file__).resolve().parents[1] / "training"
# The script, and what it imports.
CHECKS = tuple(TRAINING / name for name in ("checks.py", "laws.py", "subject.py", "steps.py"))


def inputs(preset: Path, build: Path) -> dict:
    """Everything in the directory that is not code (whose meaning is asked for by MODELING), and the text."""
    from eulerstack.data.sample import corpus_digest

    return {"directory": contents(build / "sanity"), "corpus": corpus_digest()}


def script(preset: Path, build: Path, out: Path) -> list[str]:
    """What the worker runs."""
    from eulerstack.data.sample import write_corpus

    return [str(CHECKS[0]), str(build / "sanity"), str(out / "cpu_sanity.json"), "--corpus", str(write_corpus())]


def summary(out: Path) -> str:
    return describe(out / "cpu_sanity.json")


def check(out: Path) -> None:
    """Raises SanityError, with the laws that failed, unless the verdict is PASS."""
    demand(out / "cpu_sanity.json")


def contents(directory: Path) -> dict[str, str]:
    """File name -> sha256 of what a check depends on: no code, no prose, no manifest."""
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    return {n: f["sha256"] for n, f in manifest["files"].items() if not n.endswith((".py", ".md"))}


def demand(verdict_file: Path) -> None:
    """Raises SanityError unless the verdict in this file is PASS or SKIPPED."""
    from eulerstack.errors import Problem, SanityError

    verdict = json.loads(verdict_file.read_text(encoding="utf-8"))
    if verdict["verdict"] != "FAIL":
        return
    see = "docs/tutorials/06_sanity_training.md"
    fix = "mend the layer named here, then run doit again"
    failed = ((c["name"], f"{c['figure']}, {c['detail']}") for c in verdict["checks"] if not c["ok"])
    raise SanityError(Problem("SanityError", verdict_file.name, None, None, *said, fix, see) for said in failed)


def describe(verdict_file: Path) -> str:
    verdict = json.loads(verdict_file.read_text(encoding="utf-8"))
    if verdict["verdict"] == "SKIPPED":
        return f"skipped: {verdict['reason']}"
    passed = sum(c["ok"] for c in verdict["checks"])
    training = verdict["training"]
    loss = f", loss {training['initial_loss']} -> {training['final_loss']}" if training else ""
    return f"{verdict['verdict']}: {passed} of {len(verdict['checks'])} laws{loss}"

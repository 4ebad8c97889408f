"""`hf/`, token shards -> `gpu_sanity.json`: the verdict at full size in bfloat16 on a GPU, or that there is none."""

import json
import os
from pathlib import Path

from eulerstack.stages.cpu_sanity import CHECKS, contents, demand, describe

DEVICES = Path("/proc/driver/nvidia/gpus")
HIDDEN = ("", "-1")  # values of CUDA_VISIBLE_DEVICES that leave no device

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")
WORKER = "stranger"
MODELING = "meaning"
TIME_LIMIT = 3600
OUTPUTS = ("gpu_sanity.json",)


def devices() -> list[str]:
    """The models of the NVIDIA GPUs that the driver knows, none if they are hidden, without importing torch."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN:
        return []
    found = []
    for file in sorted(DEVICES.glob("*/information")):
        found += [line.partition(":")[2].strip() for line in file.read_text().splitlines() if line.startswith("Model")]
    return found


# Without a device nothing at full size has to be written to say so.
AFTER = ("cpu_sanity", "export", "tokenize") if devices() else ("cpu_sanity",)


def inputs(preset: Path, build: Path) -> dict:
    """The devices; and, where there is one, the directory and the token shards."""
    from eulerstack.digest import file_digest

    if not devices():
        return {"devices": []}
    return {
        "devices": devices(),
        "directory": contents(build / "hf"),
        "tokens": file_digest(build / "tokenize.json"),
    }


def skipped() -> str:
    """Why this stage cannot run here, "" if it can."""
    return "" if devices() else "no CUDA device"


def script(preset: Path, build: Path, out: Path) -> list[str]:
    """What the worker runs."""
    shard = json.loads((build / "tokenize.json").read_text(encoding="utf-8"))["shards"][0]
    directory, verdict = build / "hf", out / "gpu_sanity.json"
    options = ["--tokens", build / "tokens" / shard, "--device", "cuda", "--dtype", "bfloat16", "--lr", "1e-4"]
    return [str(part) for part in (CHECKS[0], directory, verdict, *options)]


def summary(out: Path) -> str:
    return describe(out / "gpu_sanity.json")


def check(out: Path) -> None:
    """Raises SanityError, with the laws that failed, if the verdict is FAIL."""
    demand(out / "gpu_sanity.json")

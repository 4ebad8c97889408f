"""`hf/`, token shards -> `gpu_sanity.json`: the verdict at full size on a device, or that there is none.

| variable | what | otherwise |
|---|---|---|
| `EULERSTACK_DEVICE` | `cuda:<n>`: in bfloat16; `cpu`: in float32, on a shorter batch | the first CUDA device |
| `EULERSTACK_STEPS` | how many steps to train | 20 |
| `EULERSTACK_LR` | the learning rate | 1e-4 |
"""

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from eulerstack.errors import EulerStackError, ValidationError
from eulerstack.stages.cpu_sanity import CHECKS, contents, demand, describe

DEVICES = Path("/proc/driver/nvidia/gpus")
NODES = Path("/dev")  # in a container the driver's folder may be missing, and the devices be there
BY_ID = ("GPU-", "MIG-")  # how ids of devices begin; all else in CUDA_VISIBLE_DEVICES is a number
SEE = "docs/building.md#full-size"

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")
WORKER = "stranger"
MODELING = "meaning"
TIME_LIMIT = 3600
OUTPUTS = ("gpu_sanity.json",)


def devices() -> list[str]:
    """The models of the NVIDIA GPUs that the driver knows and CUDA shows, without importing torch.

    Where the driver does not say, the names of their device files.
    """
    found = []
    for file in sorted(DEVICES.glob("*/information")):
        found += [line.partition(":")[2].strip() for line in file.read_text().splitlines() if line.startswith("Model")]
    found = found or sorted(path.name for path in NODES.glob("nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else list(_shown(found, visible))


def _shown(found: list[str], visible: str) -> Iterator[str]:
    """Those that CUDA_VISIBLE_DEVICES names, by number or id, in its order, up to the first that there is not."""
    for name in map(str.strip, visible.split(",")):
        if name.isdecimal() and int(name) < len(found):
            yield found[int(name)]
        elif found and name.startswith(BY_ID):
            yield name
        else:
            return


def device() -> str:
    """`cpu`, `cuda:<n>`, or "" where none is asked for and there is none. ValidationError for any other."""
    asked, found = os.environ.get("EULERSTACK_DEVICE", ""), len(devices())
    if not asked:
        return "cuda:0" if found else ""
    if asked == "cpu":
        return asked
    number = re.fullmatch(r"cuda(?::(\d{1,3}))?", asked, re.ASCII)
    if not number:
        raise _wrong("EULERSTACK_DEVICE", f"{asked!r} is not the name of a device", "give cpu, cuda or cuda:<number>")
    if int(number[1] or 0) >= found:
        what = f"there is no device {asked!r}; CUDA devices found here: {found}"
        raise _wrong("EULERSTACK_DEVICE", what, f"give cuda:0 to cuda:{found - 1}, or cpu" if found else "give cpu")
    return f"cuda:{int(number[1] or 0)}"


def options() -> dict:
    """How the check runs, by the names of the script's options. ValidationError for what cannot be meant."""
    on_cpu = device() == "cpu"
    shape = {"rows": 1, "length": 128} if on_cpu else {"rows": 2, "length": 512}
    return {
        "device": device(),
        "dtype": "float32" if on_cpu else "bfloat16",
        **shape,
        "threads": (os.cpu_count() or 1) if on_cpu else 1,
        "steps": _steps(),
        "lr": _lr(),
    }


def _steps() -> int:
    given = os.environ.get("EULERSTACK_STEPS") or "20"
    if not re.fullmatch(r"\d{1,6}", given, re.ASCII) or int(given) < 2:
        raise _wrong("EULERSTACK_STEPS", f"{given!r} is not a number of steps", "give a whole number from 2 up")
    return int(given)


def _lr() -> float:
    given = os.environ.get("EULERSTACK_LR") or "1e-4"
    try:
        rate = float(given)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise _wrong("EULERSTACK_LR", f"{given!r} is not a learning rate", "give a number above 0, such as 1e-4")
    return rate


def _wrong(variable: str, what: str, fix: str) -> ValidationError:
    return ValidationError.at(variable, what, fix, SEE)


def _after() -> tuple[str, ...]:
    """The stages before this one. Without a device nothing at full size has to be written to say so."""
    try:
        runs = bool(device())
    except EulerStackError:
        runs = False  # `inputs` says what is wrong, where a person reads it
    return ("cpu_sanity", "export", "tokenize") if runs else ("cpu_sanity",)


AFTER = _after()


def inputs(preset: Path, build: Path) -> dict:
    """The devices; and, where there is one to run on, how, the directory and the token shards."""
    from eulerstack.digest import file_digest

    if not device():
        return {"devices": []}
    return {
        "devices": [] if device() == "cpu" else devices(),
        "options": options(),
        "directory": contents(build / "hf"),
        "tokens": file_digest(build / "tokenize.json"),
    }


def skipped() -> str:
    """Why this stage cannot run here, "" if it can."""
    return "" if device() else "no CUDA device"


def script(preset: Path, build: Path, out: Path) -> list[str]:
    """What the worker runs."""
    shard = json.loads((build / "tokenize.json").read_text(encoding="utf-8"))["shards"][0]
    given = [part for name, value in options().items() for part in (f"--{name}", value)]
    arguments = (build / "hf", out / "gpu_sanity.json", "--tokens", build / "tokens" / shard, *given)
    return [str(part) for part in (CHECKS[0], *arguments)]


def summary(out: Path) -> str:
    """The verdict, and on what."""
    said = describe(out / "gpu_sanity.json")
    run = json.loads((out / "gpu_sanity.json").read_text(encoding="utf-8")).get("run")  # one that was skipped has none
    if run is None:
        return said
    batch = f", batch {run['batch'][0]} x {run['batch'][1]}" if run["batch"] else ""
    return f"{said}, on {run['device']} in {run['dtype']}{batch}"


def check(out: Path) -> None:
    """Raises SanityError, with the laws that failed, if the verdict is FAIL."""
    demand(out / "gpu_sanity.json")

"""Processes that do the work: two warm ones (zygote.py), started when first needed, that fork a child for every job.

| job kind | forked from | may import |
|---|---|---|
| front | the zygote with yaml, pydantic and the language | anything; torch would have to be imported anew |
| package | the zygote with torch and transformers | anything |
| stranger | the same | a script, offline, without this package: as someone who was given a directory |

A child has its own session, folder, log, module cache and a clean environment. It is killed with all it started when
its time is up, when this process asks, or when this process ends in whatever way. However it ends, the job ends.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eulerstack.errors import EulerStackError

SEE = "docs/building.md#failures"
PRELOAD = {
    "front": (
        "yaml",
        "pydantic",
        "eulerstack.language.load",
        "eulerstack.ir.normalizer",
        "eulerstack.compiler.compile",
    ),
    "torch": (
        "torch",
        "safetensors.torch",
        "transformers:AutoModelForCausalLM",
        "transformers:AutoTokenizer",
        "transformers:GenerationMixin",
        "transformers:GradientCheckpointingLayer",
        "transformers:PreTrainedTokenizerFast",
        "transformers.masking_utils",
        "eulerstack.export.model",
        "eulerstack.graph.warm",  # fails on transformers 4, which needs nothing of the kind
    ),
}
WARM = {"front": "front", "package": "torch", "stranger": "torch"}
PRELOAD_LIMIT = 600.0  # seconds until a job must have started
GRACE = 3.0  # seconds for a kill to be done
KEPT = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "SSL_CERT_FILE")
KEPT_PREFIXES = ("LC_", "EULERSTACK_", "HF_", "HUGGINGFACE_HUB_", "TRANSFORMERS_", "CUDA_", "NVIDIA_", "XDG_")
PLACES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")
FIXED = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for a GPU before the fork would take it from the children
}


@dataclass(frozen=True)
class Job:
    """What to run: `call` is a module with `run(*arguments)`, or the path of a script for kind "stranger"."""

    name: str
    kind: str
    call: str
    arguments: tuple[str, ...]
    folder: Path
    log: Path
    limit: float
    workspace: Path

    @property
    def result(self) -> Path:
        return self.folder / "result.json"


class Interrupted(Exception):
    """The job was killed because this process ends; it neither failed nor finished."""


class Pool:
    """The warm processes of this process; `run` may be called from several threads."""

    def __init__(self, logs: Path):
        self.logs = logs
        self._zygotes: dict[str, Zygote] = {}
        self._lock = threading.Lock()
        self._closed = False

    def run(self, job: Job) -> None:
        """Do the job; EulerStackError with its message if it fails, dies or runs out of time."""
        job.log.parent.mkdir(parents=True, exist_ok=True)
        ended = self._zygote(WARM[job.kind]).run(_request(job), job.limit)
        if self._closed:
            raise Interrupted(job.name)
        if ended == "timeout":
            raise _failed(job, f"ran longer than its limit of {job.limit:g} s and was killed")
        if ended is None:
            raise _failed(job, "its worker process died")
        if ended < 0:
            raise _failed(job, f"was killed by {_signal(-ended)}")
        if not job.result.exists():
            raise _failed(job, f"ended without a result, with status {ended}")
        answer = json.loads(job.result.read_text(encoding="utf-8"))
        if answer["message"]:
            raise Failed(answer["message"]) if answer["placed"] else _failed(job, answer["message"])

    def close(self) -> None:
        """Kill all jobs and end all processes."""
        with self._lock:
            self._closed = True
            for zygote in self._zygotes.values():
                zygote.close()

    def _zygote(self, name: str) -> "Zygote":
        with self._lock:
            if self._closed:
                raise Interrupted("closed")
            found = self._zygotes.get(name)
            if found is not None and found.is_dead():
                found.close()
                found = None
            if found is None:
                if not self._zygotes:
                    atexit.register(self.close)
                found = self._zygotes[name] = Zygote(PRELOAD[name], self.logs / f"worker-{name}.log")
            return found


class Failed(EulerStackError):
    """What a job said went wrong: the text of the error it raised, three lines for each problem."""

    def __init__(self, message: str):
        Exception.__init__(self, message)
        self.problems = ()


class Zygote:
    """One warm process."""

    def __init__(self, preload: tuple[str, ...], log: Path):
        self.control, theirs = socket.socketpair()
        script = Path(__file__).with_name("zygote.py")
        request = json.dumps({"path": [str(Path(entry).absolute()) for entry in sys.path], "preload": preload})
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", os.fspath(script), str(theirs.fileno()), request],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
                start_new_session=True,
            )

    def is_dead(self) -> bool:
        return self.process.poll() is not None

    def run(self, request: bytes, limit: float) -> int | str | None:
        """The status a job ended with, "timeout", or None if the zygote died. No way out leaves the job alive."""
        mine, theirs = socket.socketpair()
        with mine:
            mine.sendall(request)
            with theirs:
                try:
                    socket.send_fds(self.control, [b"j"], [theirs.fileno()])
                except OSError:
                    return None  # it died since it was asked
            started = ended = None
            try:
                mine.settimeout(PRELOAD_LIMIT)
                started = _answer(mine)
                mine.settimeout(limit)
                ended = _answer(mine) if started else None
                return ended and ended["ended"]
            except TimeoutError:
                return "timeout"
            finally:
                if started and not ended:
                    _stop(mine)

    def close(self) -> None:
        """Let it kill its jobs and end; it may still be importing, then it has no jobs."""
        self.control.close()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _answer(connection: socket.socket) -> dict | None:
    """The next line, or None at the end. Byte by byte: lines are short, and none must be read with another."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            return None
        line += byte
    return json.loads(line)


def _stop(connection: socket.socket) -> None:
    """Have the job killed, and wait until it is."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(GRACE)
        while connection.recv(4096):
            pass


def environment() -> dict[str, str]:
    """The parts of ours that a worker gets, and what it always gets.

    A worker stands in another folder: a place given from here must be the same there, or it would read another
    tokenizer than the one that the key speaks of.
    """
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    given = {name: Path(os.path.expandvars(kept[name])).expanduser() for name in PLACES if kept.get(name)}
    return kept | {name: os.fspath(place.absolute()) for name, place in given.items()} | FIXED


def _request(job: Job) -> bytes:
    own = {
        "HF_MODULES_CACHE": os.fspath(job.folder / "hf_modules"),
        "TMPDIR": os.fspath(job.folder),
        "EULERSTACK_HOME": os.fspath(job.workspace),
    }
    paths = {"folder": os.fspath(job.folder), "log": os.fspath(job.log), "result": os.fspath(job.result)}
    call = {"kind": job.kind, "call": job.call, "arguments": job.arguments, "environment": own}
    return json.dumps(call | paths).encode() + b"\n"


def _failed(job: Job, what: str) -> EulerStackError:
    return EulerStackError.at(job.name, what, f"read its log, {job.log}", SEE)


def _signal(number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else "a signal"
    return f"signal {number} ({name})" + (", perhaps for lack of memory" if number == signal.SIGKILL else "")

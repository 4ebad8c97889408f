"""A warm process: imports what is slow to import, once, then forks a child for every job. Started by worker.py.

Run as a script by path, standard library only, so that it is not part of the package it may have to hide. Protocol:
each job comes as a socket over the control socket (argv[1]), with one line of JSON on it; the answers are the lines
{"started": pid} and {"ended": status}, status as in subprocess. When the other end shuts down, the child and all it
started are killed; when the control socket closes, everything is.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

HIDDEN = "eulerstack"
PR_SET_PDEATHSIG = 1


class Stranger:
    """An import hook for whom this package does not exist."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == HIDDEN or name.startswith(f"{HIDDEN}."):
            raise ModuleNotFoundError(f"No module named {name!r}: strangers do not have it", name=name)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    request = json.loads(sys.argv[2])
    sys.path[:] = request["path"]
    for thing in request["preload"]:
        try:
            load(*thing.split(":"))
        except Exception:  # a job that needs it fails with the same error; one that does not need it must not
            traceback.print_exc()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()
    serve(control)


def load(module: str, *names: str) -> None:
    """Import a module, and what it imports only when asked for one of its names."""
    found = importlib.import_module(module)
    for name in names:
        getattr(found, name)


def serve(control: socket.socket) -> None:
    """Fork, kill and reap until the control socket closes."""
    awake, wake = socket.socketpair()
    for end in (awake, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    jobs: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(awake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control and not accept(control, jobs, selector):
                    for pid in jobs:
                        kill(pid)
                    return
                if key.fileobj is awake:
                    reap(awake, jobs, selector)
                elif key.data is not None:  # a job's other end shut down
                    selector.unregister(key.fileobj)
                    kill(key.data)


def accept(control: socket.socket, jobs: dict, selector: selectors.BaseSelector) -> bool:
    """Fork for the next job; False if there will be none."""
    data, sockets, _, _ = socket.recv_fds(control, 1, 1)
    if not data:
        return False
    connection = socket.socket(fileno=sockets[0])
    with connection.makefile("rb") as lines:
        job = json.loads(lines.readline())
    pid = os.fork()
    if pid == 0:
        become(job, [control, connection, *jobs.values()])
    jobs[pid] = connection
    selector.register(connection, selectors.EVENT_READ, data=pid)
    say(connection, started=pid)
    return True


def reap(awake: socket.socket, jobs: dict, selector: selectors.BaseSelector) -> None:
    """Tell the ends of all children that have ended, after killing what they left running."""
    with suppress(BlockingIOError):
        awake.recv(4096)
    while jobs:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        kill(ended.si_pid)  # before waitpid frees the number
        _, status = os.waitpid(ended.si_pid, 0)
        connection = jobs.pop(ended.si_pid)
        with suppress(KeyError):
            selector.unregister(connection)
        say(connection, ended=os.waitstatus_to_exitcode(status))
        connection.close()


def say(connection: socket.socket, **message) -> None:
    with suppress(OSError):  # the other end may be gone
        connection.sendall(json.dumps(message).encode() + b"\n")


def kill(pid: int) -> None:
    """Kill the child and its group (which it may not have founded yet)."""
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            send(pid, signal.SIGKILL)


def become(job: dict, inherited: list[socket.socket]) -> None:
    """Be the child: run the job, leave its result in a file, end."""
    status = 1
    try:
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for connection in inherited:
            connection.close()
        settle(job)
        message, placed = work(job)
        result = Path(job["result"])
        answer = json.dumps({"message": message, "placed": placed})
        result.with_suffix(".part").write_text(answer, encoding="utf-8")
        result.with_suffix(".part").replace(result)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def settle(job: dict) -> None:
    """Own output, folder, environment and module cache."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.chdir(job["folder"])
    os.environ.update(job["environment"])
    cache = os.environ["HF_MODULES_CACHE"]
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers") and "HF_MODULES_CACHE" in vars(module):
            module.HF_MODULES_CACHE = cache
    if job["kind"] == "stranger":
        estrange()


def estrange() -> None:
    """Forget the package, and the network."""
    for name in [name for name in sys.modules if name == HIDDEN or name.startswith(f"{HIDDEN}.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Stranger)
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    if "huggingface_hub.constants" in sys.modules:
        sys.modules["huggingface_hub.constants"].HF_HUB_OFFLINE = True


def work(job: dict) -> tuple[str, bool]:
    """Run the job. What went wrong, "" for nothing, and whether that is a message made for people."""
    try:
        if job["kind"] == "stranger":
            sys.argv = [job["call"], *job["arguments"]]
            sys.path.insert(0, str(Path(job["call"]).parent))  # as `python script.py` does
            runpy.run_path(job["call"], run_name="__main__")
        else:
            importlib.import_module(job["call"]).run(*map(Path, job["arguments"]))
    except SystemExit as end:
        if end.code in (None, 0):
            return "", True
        return (end.code, True) if isinstance(end.code, str) else (f"ended with status {end.code}", False)
    except BaseException as error:
        traceback.print_exc()
        return (str(error), True) if hasattr(error, "problems") else (f"{type(error).__name__}: {error}", False)
    return "", True


if __name__ == "__main__":
    main()

"""Jobs end, whatever happens to them, and leave nothing running."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from eulerstack.errors import EulerStackError
from eulerstack.graph.worker import PRELOAD, Interrupted, Job, Pool, environment

MODULE = """
import os, signal, subprocess, sys, time
from eulerstack.errors import ValidationError

def run(action, out):
    print("running", action, flush=True)
    globals()["do_" + action.name](out)

def do_work(out): out.write_text(str(os.getsid(0) == os.getpid()))
def do_placed(out): raise ValidationError.at("presets/x.yml", "wrong", "make it right", "docs/language.md", line=3)
def do_crash(out): raise ZeroDivisionError("by nothing")
def do_die(out): os.kill(os.getpid(), signal.SIGKILL)
def do_exit(out): os._exit(7)
def do_deaf(out):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    out.write_text(f"{os.getpid()} {child.pid}")
    time.sleep(60)
def do_leave(out):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    out.write_text(str(child.pid))
def do_environment(out):
    import json
    out.write_text(json.dumps({"cwd": os.getcwd(), **os.environ}))
def do_zygote(out): out.write_text(str(os.getppid()))
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """One pool for all, whose workers can import the module `jobs`."""
    folder = tmp_path_factory.mktemp("pool")
    (folder / "jobs.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    found = Pool(folder / "logs")
    yield found
    found.close()
    sys.path.remove(str(folder))


@pytest.fixture
def job(tmp_path):
    """A function that makes a job: an action of `jobs`, or a script for a stranger."""

    def make(action: str, limit: float = 30.0, kind: str = "front") -> Job:
        folder = tmp_path / f"folder-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        script = folder / "script.py"
        script.write_text(textwrap.dedent(action))
        call, first = ("jobs", action) if kind == "front" else (str(script), "argument")
        log = tmp_path / "logs" / "job.log"
        return Job("stage:x", kind, call, (first, str(tmp_path / "out")), folder, log, limit, tmp_path)

    return make


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(*pids: int) -> bool:
    """Whether the processes end within a moment."""
    deadline = time.monotonic() + 5
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


def test_a_job_runs_in_its_own_session_and_its_log_is_kept(pool, job, out):
    done = job("work")
    pool.run(done)
    assert out.read_text() == "True"
    assert done.log.read_text() == "running work\n"


def test_an_error_of_ours_comes_back_as_its_text(pool, job):
    with pytest.raises(EulerStackError) as caught:
        pool.run(job("placed"))
    assert str(caught.value) == ("presets/x.yml:3: ValidationError: wrong\nFix: make it right\nSee: docs/language.md")


def test_a_crash_is_a_message_that_leads_to_the_traceback(pool, job):
    crashing = job("crash")
    with pytest.raises(EulerStackError, match=r"stage:x: EulerStackError: ZeroDivisionError: by nothing") as caught:
        pool.run(crashing)
    assert "Traceback" not in str(caught.value)
    assert str(crashing.log) in str(caught.value)
    assert "in do_crash" in crashing.log.read_text()


def test_a_killed_child_is_a_failure_at_once(pool, job):
    began = time.monotonic()
    with pytest.raises(EulerStackError, match=r"killed by signal 9 \(SIGKILL\), perhaps for lack of memory"):
        pool.run(job("die"))
    assert time.monotonic() - began < 10
    pool.run(job("work"))


def test_a_silent_end_is_a_failure(pool, job):
    with pytest.raises(EulerStackError, match="without a result, with status 7"):
        pool.run(job("exit"))


def test_a_job_out_of_time_is_killed_with_its_children(pool, job, out):
    with pytest.raises(EulerStackError, match=r"longer than its limit of 1.5 s"):
        pool.run(job("deaf", limit=1.5))
    assert gone(*map(int, out.read_text().split()))


def test_what_a_job_leaves_running_is_killed(pool, job, out):
    pool.run(job("leave"))
    assert gone(int(out.read_text()))


def test_a_dead_zygote_fails_the_job_and_the_next_job_gets_another(pool, job, out):
    pool.run(job("zygote"))
    first = int(out.read_text())
    threading.Timer(0.5, os.kill, [first, signal.SIGKILL]).start()
    with pytest.raises(EulerStackError, match="worker process died"):
        pool.run(job("deaf"))
    assert gone(int(out.read_text().split()[0]))
    pool.run(job("zygote"))
    assert int(out.read_text()) != first


def test_jobs_run_side_by_side_with_separate_logs_and_folders(pool, tmp_path):
    seen = {}

    def work(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        arguments = ("environment", str(folder / "out"))
        pool.run(Job("x", "front", "jobs", arguments, folder, folder / "log", 30, tmp_path))
        seen[number] = json.loads((folder / "out").read_text())

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {number: found["cwd"] for number, found in seen.items()} == {n: str(tmp_path / str(n)) for n in range(4)}
    assert len({found["HF_MODULES_CACHE"] for found in seen.values()}) == 4
    assert {found["EULERSTACK_HOME"] for found in seen.values()} == {str(tmp_path)}
    assert all((tmp_path / str(n) / "log").read_text() == "running environment\n" for n in range(4))


def test_only_named_variables_reach_a_worker(monkeypatch):
    monkeypatch.setenv("SOME_SECRET", "x")
    monkeypatch.setenv("EULERSTACK_CACHE", "elsewhere")
    found = environment()
    assert "SOME_SECRET" not in found
    assert (found["EULERSTACK_CACHE"], found["PYTHONHASHSEED"], found["OMP_NUM_THREADS"]) == ("elsewhere", "0", "1")


def test_the_hubs_places_are_the_same_in_a_workers_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", "hub")
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", "$HF_HOME/cache")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/mine")
    monkeypatch.setenv("HF_HUB_CACHE", "")
    found = environment()
    assert found["HF_HOME"] == str(tmp_path / "hub")
    assert found["HUGGINGFACE_HUB_CACHE"] == str(tmp_path / "hub" / "cache")
    assert found["XDG_CACHE_HOME"] == str(Path("~/mine").expanduser())
    assert found["HF_HUB_CACHE"] == ""


def test_workers_die_with_the_process_that_started_them(job, out, tmp_path):
    (tmp_path / "jobs.py").write_text(MODULE)
    program = f"""
        from pathlib import Path
        from eulerstack.graph.worker import Job, Pool
        folder = Path({str(tmp_path)!r})
        (folder / "own").mkdir()
        Pool(folder / "logs").run(
            Job("x", "front", "jobs", ("deaf", {str(out)!r}), folder / "own", folder / "log", 60, folder)
        )
    """
    path = os.pathsep.join([str(tmp_path), *sys.path])
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], env={**os.environ, "PYTHONPATH": path})
    deadline = time.monotonic() + 20
    while not (out.exists() and len(out.read_text().split()) == 2) and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    assert gone(*map(int, out.read_text().split()))


def test_closing_interrupts_and_is_no_failure(job, tmp_path):
    (tmp_path / "jobs.py").write_text(MODULE)
    sys.path.insert(0, str(tmp_path))
    try:
        own = Pool(tmp_path / "logs")
        threading.Timer(1.5, own.close).start()
        with pytest.raises(Interrupted):
            own.run(job("deaf"))
        with pytest.raises(Interrupted):
            own.run(job("work"))
    finally:
        sys.path.remove(str(tmp_path))


def test_what_is_named_to_be_preloaded_exists():
    names = [name.partition(":") for kind in PRELOAD.values() for name in kind]
    assert [module for module, _, _ in names if find_spec(module) is None] == []
    assert [name for module, _, name in names if name and not hasattr(import_module(module), name)] == []


STRANGER = """
    import json, os, sys
    found = {"argv": sys.argv[1:], "loaded": list(sys.modules), "name": __name__}
    for name in ("eulerstack", "eulerstack.errors"):
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            found[name] = str(error)
    import huggingface_hub, torch, transformers
    from transformers.dynamic_module_utils import HF_MODULES_CACHE
    found["offline"] = huggingface_hub.constants.HF_HUB_OFFLINE
    found["modules"] = HF_MODULES_CACHE
    found["threads"] = torch.get_num_threads()
    found["sum"] = float((torch.ones(300, 300) @ torch.ones(300, 300)).sum())
    open(sys.argv[2], "w").write(json.dumps(found))
"""


def test_a_stranger_has_torch_at_hand_and_neither_eulerstack_nor_a_network(pool, job, out):
    stranger = job(STRANGER, limit=120, kind="stranger")
    pool.run(stranger)
    found = json.loads(out.read_text())
    assert found["argv"] == ["argument", str(out)]
    own = {name for name in PRELOAD["torch"] if name.startswith("eulerstack")}
    assert {name.partition(":")[0] for name in PRELOAD["torch"]} - own <= set(found["loaded"])
    assert [name for name in found["loaded"] if name.partition(".")[0] == "eulerstack"] == []
    assert (found["name"], found["offline"], found["threads"]) == ("__main__", True, 1)
    assert "strangers do not have it" in found["eulerstack"]
    assert "strangers do not have it" in found["eulerstack.errors"]
    assert found["modules"] == str(stranger.folder / "hf_modules")
    assert found["sum"] == 300.0**3


def test_a_script_imports_what_lies_beside_it(pool, job, out):
    stranger = job("import sys, beside; open(sys.argv[2], 'w').write(beside.WORD)", kind="stranger")
    (stranger.folder / "beside.py").write_text("WORD = 'found'\n")
    pool.run(stranger)
    assert out.read_text() == "found"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.exit('what went wrong\\nFix: this')", r"^what went wrong\nFix: this$"),
        ("import sys; sys.exit(3)", "ended with status 3"),
        ("import eulerstack", "ModuleNotFoundError: No module named 'eulerstack'"),
    ],
)
def test_a_script_fails_by_its_exit_or_its_error(pool, job, script, message):
    with pytest.raises(EulerStackError, match=message):
        pool.run(job(script, kind="stranger"))


def test_a_package_job_of_the_same_warm_process_may_import_eulerstack(pool, tmp_path, out):
    pool.run(Job("x", "package", "jobs", ("work", str(out)), tmp_path, tmp_path / "log", 120, tmp_path))
    assert out.read_text() == "True"

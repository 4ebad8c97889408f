"""A toy house: a package with four quick stages, presets of a few words, and real doit runs over them."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

PACKAGE = {
    "__init__.py": "",
    "stages/__init__.py": "",
    "lib.py": "FACTOR = 2\n",
    "stages/normalize.py": '''
        """words of a preset"""
        import hashlib, json, os, signal, time
        from pathlib import Path
        from eulerstack.errors import ValidationError

        AFTER = ()
        LIBRARIES = ("pyyaml",)
        OUTPUTS = ("normalize.json",)
        WORKER = "front"
        MODELING = None
        TIME_LIMIT = 20

        def inputs(preset, build):
            return {"preset": hashlib.sha256(preset.read_bytes()).hexdigest()}

        def run(preset, build, out):
            with open(os.environ["EULERSTACK_LEDGER"], "a") as ledger:
                ledger.write(f"normalize:{preset.stem}\\n")
            print("normalizing", preset.stem)
            words = []
            for line in preset.read_text().splitlines():
                words += line.partition("#")[0].split()
            (out / "normalize.json").write_text(json.dumps(words[: len(words) // 2]))
            if "slow" in words:
                (preset.parent / "started").write_text(str(os.getpid()))
                for _ in range(1500):  # until the test says so
                    if (preset.parent / "released").exists():
                        break
                    time.sleep(0.01)
            if "fail" in words:
                raise ValidationError.at(preset, "a word that fails", "remove it", "docs/language.md", line=1)
            if "crash" in words:
                raise ZeroDivisionError("a crash")
            if "die" in words:
                os.kill(os.getpid(), signal.SIGKILL)
            if "half" not in words:
                (out / "normalize.json").write_text(json.dumps(words))

        def summary(out):
            return f"{len(json.loads((out / 'normalize.json').read_text()))} words"
        ''',
    "stages/compile.py": '''
        """lengths of the words, in a unit of the library"""
        import hashlib, json, os

        AFTER = ("normalize",)
        LIBRARIES = ()
        OUTPUTS = ("compile.json", "code.json")
        WORKER = "front"
        MODELING = None
        TIME_LIMIT = 20

        def inputs(preset, build):
            return {"normalize": hashlib.sha256((build / "normalize.json").read_bytes()).hexdigest()}

        def run(preset, build, out):
            from toyhouse.lib import FACTOR
            with open(os.environ["EULERSTACK_LEDGER"], "a") as ledger:
                ledger.write(f"compile:{preset.stem}\\n")
            words = json.loads((build / "normalize.json").read_text())
            (out / "compile.json").write_text(json.dumps({word: FACTOR * len(word) for word in words}, sort_keys=True))
            (out / "code.json").write_text(json.dumps({"files": {"m.py": {"bytes": "b", "meaning": "m"}}}))

        def summary(out):
            return "compiled"
        ''',
    "stages/export.py": '''
        """a directory"""
        import hashlib, os, shutil

        AFTER = ("compile",)
        LIBRARIES = ()
        OUTPUTS = ("hf",)
        WORKER = "front"
        MODELING = "bytes"
        TIME_LIMIT = 20

        def inputs(preset, build):
            return {"compile": hashlib.sha256((build / "compile.json").read_bytes()).hexdigest()}

        def run(preset, build, out):
            with open(os.environ["EULERSTACK_LEDGER"], "a") as ledger:
                ledger.write(f"export:{preset.stem}\\n")
            (out / "hf" / "deep").mkdir(parents=True)
            shutil.copy(build / "compile.json", out / "hf" / "config.json")
            (out / "hf" / "deep" / "model.bin").write_bytes(b"weights " + (build / "compile.json").read_bytes())

        def summary(out):
            return "exported"
        ''',
    "stages/cpu_sanity.py": '''
        """a verdict"""
        import hashlib, json, os
        from eulerstack.errors import SanityError

        AFTER = ("export",)
        LIBRARIES = ()
        OUTPUTS = ("cpu_sanity.json",)
        WORKER = "front"
        MODELING = "meaning"
        TIME_LIMIT = 20

        def inputs(preset, build):
            return {"config": hashlib.sha256((build / "hf/config.json").read_bytes()).hexdigest()}

        def run(preset, build, out):
            with open(os.environ["EULERSTACK_LEDGER"], "a") as ledger:
                ledger.write(f"cpu_sanity:{preset.stem}\\n")
            lengths = json.loads((build / "hf/config.json").read_text())
            verdict = "FAIL" if "unsound" in lengths else "PASS"
            (out / "cpu_sanity.json").write_text(json.dumps({"total": sum(lengths.values()), "verdict": verdict}))

        def summary(out):
            return json.loads((out / "cpu_sanity.json").read_text())["verdict"]

        def check(out):
            if summary(out) == "FAIL":
                raise SanityError.at("cpu_sanity.json", "not sound", "be sound", "docs/building.md")
        ''',
    "stages/gpu_sanity.py": '''
        """a verdict of a machine that is not here"""
        AFTER = ("cpu_sanity",)
        LIBRARIES = ()
        OUTPUTS = ("gpu_sanity.json",)
        WORKER = "front"
        MODELING = None
        TIME_LIMIT = 20

        def inputs(preset, build):
            return {"devices": []}

        def skipped():
            return "no CUDA device"

        def run(preset, build, out):
            raise AssertionError("there is no device")

        def summary(out):
            return "skipped: no CUDA device"
        ''',
}

DODO = """
from eulerstack.graph import worker
from eulerstack.graph.tasks import DOIT_CONFIG, tasks_of

worker.PRELOAD["front"] = ()  # the toys need nothing that is slow to import

task_stages = tasks_of("toyhouse.stages")
"""


@dataclass
class House:
    """A workspace with the toy package, and ways to act on it."""

    root: Path

    def preset(self, name: str, text: str) -> Path:
        path = self.root / "presets" / f"{name}.yml"
        path.write_text(text)
        return path

    def release(self) -> None:
        """Let stages that read "slow" go on."""
        (self.root / "presets" / "released").touch()

    @property
    def ledger(self) -> Path:
        return self.root / "ledger"

    def executed(self) -> list[str]:
        """What has been executed since the last call."""
        found = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        self.ledger.unlink(missing_ok=True)
        return found

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("EULERSTACK", "DOIT"))}
        return clean | {"PYTHONPATH": str(REPO), "EULERSTACK_LEDGER": str(self.ledger), "PYTHONWARNINGS": "error"}

    def start(self, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "doit", *arguments],
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # a shell has its background jobs ignore Ctrl-C, and what they start inherits it
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  there are no threads here
        )

    def doit(self, *arguments: str, status: int = 0) -> str:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == status, output
        assert "Traceback" not in output, output
        return output

    def wipe(self) -> None:
        """Forget all that was ever built."""
        for name in ("build", "cache"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        self.ledger.unlink(missing_ok=True)

    def contents(self) -> dict[str, bytes]:
        """All that is built, by relative path; links followed."""
        found = {}
        for folder, folders, names in os.walk(self.root / "build", followlinks=True):
            folders[:] = [name for name in folders if name != ".tmp"]
            for name in names:
                path = Path(folder, name)
                found[path.relative_to(self.root / "build").as_posix()] = path.read_bytes()
        return found

    def leftovers(self) -> list[Path]:
        """Unfinished work and locks of nobody."""
        places = ("cache/tmp", "build/.tmp", "cache/locks")
        return [path for place in places for path in sorted((self.root / place).glob("*"))]


def build_house(root: Path) -> House:
    for name, text in PACKAGE.items():
        path = root / "toyhouse" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    (root / "presets").mkdir()
    (root / "dodo.py").write_text(DODO)
    return House(root)


@pytest.fixture
def house(tmp_path) -> House:
    """A workspace with two presets, nothing built."""
    found = build_house(tmp_path)
    found.preset("one", "alpha beta\n")
    found.preset("two", "gamma  # a comment\n")
    return found


@pytest.fixture
def new_house(tmp_path_factory):
    """A function that makes further workspaces, without presets."""
    return lambda: build_house(tmp_path_factory.mktemp("house"))


@pytest.fixture
def inside(house, monkeypatch):
    """A function that gives the steps of the house by name, as a new doit process would have them, in this process."""
    from eulerstack.graph import worker
    from eulerstack.graph.tasks import _tasks

    monkeypatch.setitem(worker.PRELOAD, "front", ())
    monkeypatch.chdir(house.root)
    monkeypatch.syspath_prepend(house.root)
    for name in ("EULERSTACK_HOME", "EULERSTACK_BUILD", "EULERSTACK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EULERSTACK_LEDGER", str(house.ledger))
    pools = []

    def steps():
        found = {
            task["meta"]["step"].name: task["meta"]["step"] for task in _tasks("toyhouse.stages") if "meta" in task
        }
        place = next(iter(found.values())).place
        if pools:
            place.pool = pools[0]  # the same warm process for all
        else:
            pools.append(place.pool)
        return found

    yield steps
    for pool in pools:
        pool.close()
    for name in [name for name in sys.modules if name.partition(".")[0] == "toyhouse"]:
        del sys.modules[name]

"""The check at full size: on which device, how, and what of that enters its key."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eulerstack.errors import ValidationError
from eulerstack.stages import gpu_sanity

VARIABLES = ("EULERSTACK_DEVICE", "EULERSTACK_STEPS", "EULERSTACK_LR", "CUDA_VISIBLE_DEVICES")
MANIFEST = {"files": {"config.json": {"sha256": "0" * 64, "size": 1}}}


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A function that gives this machine so many GPUs. At first there is none, and no variable is set."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    drivers = tmp_path / "drivers"
    monkeypatch.setattr(gpu_sanity, "DEVICES", drivers)
    monkeypatch.setattr(gpu_sanity, "NODES", tmp_path / "dev")

    def make(count: int) -> None:
        for number in range(count):
            (drivers / f"0000:0{number}:00.0").mkdir(parents=True)
            (drivers / f"0000:0{number}:00.0" / "information").write_text("Model: \t NVIDIA X100\nIRQ:   \t 5\n")

    return make


@pytest.fixture
def build(tmp_path) -> Path:
    """What the stage reads of the artifacts."""
    folder = tmp_path / "build"
    (folder / "hf").mkdir(parents=True)
    (folder / "hf" / "manifest.json").write_text(json.dumps(MANIFEST))
    (folder / "tokenize.json").write_text(json.dumps({"shards": ["s.npy"]}))
    return folder


def test_devices_are_those_that_the_driver_lists_unless_they_are_hidden(machine, monkeypatch):
    assert gpu_sanity.devices() == []
    machine(1)
    assert gpu_sanity.devices() == ["NVIDIA X100"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpu_sanity.devices() == ["NVIDIA X100"]
    for hidden in ("", "-1", "none", "1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert gpu_sanity.devices() == []


@pytest.mark.parametrize(("visible", "count"), [("1", 1), ("1, 0", 2), ("0,-1,1", 1), ("GPU-1f,MIG-2e", 2), ("0,2", 1)])
def test_a_device_counts_among_those_that_cuda_shows(machine, monkeypatch, visible, count):
    machine(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("EULERSTACK_DEVICE", f"cuda:{count - 1}")
    assert gpu_sanity.device() == f"cuda:{count - 1}"
    monkeypatch.setenv("EULERSTACK_DEVICE", f"cuda:{count}")
    with pytest.raises(ValidationError, match=f"CUDA devices found here: {count}"):
        gpu_sanity.device()


def test_without_the_driver_s_word_the_device_files_count(machine, tmp_path):
    (tmp_path / "dev").mkdir()
    for name in ("nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert gpu_sanity.devices() == ["nvidia0", "nvidia1"]
    machine(1)
    assert gpu_sanity.devices() == ["NVIDIA X100"]


def test_without_a_device_it_is_skipped_and_asks_for_nothing(tmp_path):
    assert gpu_sanity.device() == ""
    assert gpu_sanity.skipped() == "no CUDA device"
    assert gpu_sanity.inputs(tmp_path, tmp_path) == {"devices": []}


@pytest.mark.parametrize(
    ("asked", "count", "found"),
    [
        ("", 2, "cuda:0"),
        ("cpu", 0, "cpu"),
        ("cpu", 1, "cpu"),
        ("cuda", 1, "cuda:0"),
        ("cuda:0", 1, "cuda:0"),
        ("cuda:01", 2, "cuda:1"),
    ],
)
def test_the_device_is_the_one_asked_for_or_the_first(machine, monkeypatch, asked, count, found):
    machine(count)
    monkeypatch.setenv("EULERSTACK_DEVICE", asked)
    assert gpu_sanity.device() == found
    assert gpu_sanity.skipped() == ""


@pytest.mark.parametrize(
    ("variable", "value", "said", "fix"),
    [
        ("EULERSTACK_DEVICE", "gpu", "'gpu' is not the name of a device", "give cpu, cuda or cuda:<number>"),
        ("EULERSTACK_DEVICE", "cuda:-1", "'cuda:-1' is not the name of a device", "give cpu, cuda or cuda:<number>"),
        ("EULERSTACK_DEVICE", "cuda:0\n", "'cuda:0\\n' is not the name of a device", "give cpu, cuda or cuda:<number>"),
        ("EULERSTACK_DEVICE", "cuda:2", "there is no device 'cuda:2'; CUDA devices found here: 2", "cuda:1, or cpu"),
        ("EULERSTACK_STEPS", "1", "'1' is not a number of steps", "give a whole number from 2 up"),
        ("EULERSTACK_STEPS", "2.5", "'2.5' is not a number of steps", "give a whole number from 2 up"),
        ("EULERSTACK_LR", "0", "'0' is not a learning rate", "give a number above 0, such as 1e-4"),
        ("EULERSTACK_LR", "nan", "'nan' is not a learning rate", "give a number above 0, such as 1e-4"),
        ("EULERSTACK_LR", "inf", "'inf' is not a learning rate", "give a number above 0, such as 1e-4"),
        ("EULERSTACK_LR", "high", "'high' is not a learning rate", "give a number above 0, such as 1e-4"),
    ],
)
def test_what_cannot_be_meant_is_said_in_three_lines(machine, monkeypatch, build, variable, value, said, fix):
    machine(2)
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValidationError) as caught:
        gpu_sanity.inputs(build, build)
    first, second, third = str(caught.value).split("\n")
    assert first == f"{variable}: ValidationError: {said}"
    assert second.startswith("Fix: ")
    assert second.endswith(fix)
    assert third == "See: docs/building.md#full-size"


def test_a_device_where_there_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("EULERSTACK_DEVICE", "cuda:0")
    with pytest.raises(
        ValidationError, match="there is no device 'cuda:0'; CUDA devices found here: 0\nFix: give cpu\n"
    ):
        gpu_sanity.skipped()


def test_how_it_runs_is_what_the_script_is_told_and_part_of_the_key(machine, monkeypatch, build, tmp_path):
    machine(1)
    seen = []
    for device, steps, rate in (("", "", ""), ("cpu", "", ""), ("cpu", "50", ""), ("cpu", "50", "3e-4")):
        for name, value in zip(VARIABLES, (device, steps, rate), strict=False):
            monkeypatch.setenv(name, value)
        script, directory, verdict, *options = gpu_sanity.script(build, build, tmp_path)
        assert Path(script).name == "checks.py"
        assert (Path(directory), Path(verdict)) == (build / "hf", tmp_path / "gpu_sanity.json")
        told = dict(zip(options[::2], options[1::2], strict=True))
        assert told.pop("--tokens") == str(build / "tokens" / "s.npy")
        key = gpu_sanity.inputs(build, build)
        assert told == {f"--{name}": str(value) for name, value in key["options"].items()}
        seen.append(key)
    assert len({json.dumps(key) for key in seen}) == 4
    gpu, cpu, steps, rate = (key["options"] for key in seen)
    assert (gpu["device"], gpu["dtype"], gpu["rows"], gpu["length"]) == ("cuda:0", "bfloat16", 2, 512)
    assert (cpu["device"], cpu["dtype"], cpu["rows"], cpu["length"]) == ("cpu", "float32", 1, 128)
    assert (cpu["steps"], cpu["lr"], steps["steps"], rate["lr"]) == (20, 1e-4, 50, 3e-4)


@pytest.mark.parametrize(
    ("device", "above"),
    [("", ["cpu_sanity"]), ("cpu", ["cpu_sanity", "export", "tokenize"]), ("nonsense", ["cpu_sanity"])],
)
def test_full_size_is_written_only_where_it_is_read(monkeypatch, device, above):
    """A device that cannot be meant stops the stage that asks for it, not `doit`."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("EULERSTACK_DEVICE", device)
    code = "import json; from eulerstack.stages import gpu_sanity; print(json.dumps(gpu_sanity.AFTER))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(process.stdout) == above


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (
            {"device": "cpu", "dtype": "float32", "batch": [1, 128]},
            "PASS: 0 of 0 laws, on cpu in float32, batch 1 x 128",
        ),
        ({"device": "cuda:0", "dtype": "bfloat16", "batch": None}, "PASS: 0 of 0 laws, on cuda:0 in bfloat16"),
    ],
)
def test_the_summary_says_on_what_it_ran(tmp_path, run, said):
    verdict = {"verdict": "PASS", "reason": "", "checks": [], "training": None, "run": run}
    (tmp_path / "gpu_sanity.json").write_text(json.dumps(verdict))
    assert gpu_sanity.summary(tmp_path) == said

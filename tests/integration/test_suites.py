"""The gated suites themselves: what they skip and why, what they choose, and that they can pass and fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
TUTORIAL = REPO / "docs" / "tutorials" / "06_sanity_training.md"
OURS = ("EULERSTACK_", "RUN_", "PYTEST_", "CUDA_")
SUITES = {"llm": "RUN_LLM_E2E", "arch": "RUN_ARCH_E2E", "mini": "RUN_EXPERT_MINI_E2E"}
FOLDERS = {"llm": "llm_e2e", "arch": "arch_e2e", "mini": "expert_mini_e2e"}
PRESET = """\
schema_version: 1
model: {{name: small, d_model: 64, vocab_size: 400, max_seq_len: 64, n_heads: 1, d_ff: {d_ff}}}
tokenizer_contract: {{type: byte_bpe}}
embedding: {{type: learned, positional: rope}}
layer_templates:
  attention: {{mixer: {{type: attention}}, ffn: {{type: gated_mlp}}}}
layer_schedule: [{{template: attention, repeat: {layers}}}]
head: {{type: causal_lm}}
"""
TINY = {"d_ff": 48, "layers": 2}
LARGE = {"d_ff": 8_000_000, "layers": 2}  # 3 B, of which nothing is built here


def pytest_in(workspace: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """pytest in a process of its own, with the presets of `workspace`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments],
        cwd=REPO,
        env=clean | {"EULERSTACK_HOME": str(workspace)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def presets(tmp_path):
    """A function that makes a workspace of presets: name -> sizes, or a text in place of them."""

    def make(**given: dict | str) -> Path:
        (tmp_path / "presets").mkdir()
        for name, what in given.items():
            text = what if isinstance(what, str) else PRESET.format(**what)
            (tmp_path / "presets" / f"{name}.yml").write_text(text)
        return tmp_path

    return make


def chosen(output: str) -> list[str]:
    return re.findall(r"::test_a_preset_passes_at_full_size\[(\w+)\]", output)


def test_without_its_gate_each_suite_is_skipped_and_names_the_variable(presets):
    workspace = presets(llm_a=TINY, arch_a=TINY, arch_a_mini=TINY)
    folders = [f"tests/integration/{folder}/" for folder in FOLDERS.values()]
    ended = pytest_in(workspace, *folders, EULERSTACK_DEVICE="cpu")
    assert ended.returncode == 0, ended.stdout
    for suite, gate in SUITES.items():
        line = rf"^SKIPPED \[1\] tests/integration/{FOLDERS[suite]}/.*: set {gate}=1 to run it$"
        assert re.search(line, ended.stdout, re.MULTILINE), ended.stdout
    assert " 3 skipped in" in ended.stdout


def test_without_a_device_an_open_suite_is_skipped_and_says_so(presets):
    workspace = presets(llm_a=TINY)
    ended = pytest_in(workspace, "tests/integration/llm_e2e/", RUN_LLM_E2E="1", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"^SKIPPED \[1\] .*: no CUDA device found, and EULERSTACK_DEVICE names none$", ended.stdout, re.M)


def test_all_means_what_each_suite_is_for_by_size(presets):
    """A size in a name decides nothing."""
    workspace = presets(llm_16b_small=TINY, llm_0p1b_large=LARGE, llm_typo="{", arch_a=LARGE, arch_a_mini=TINY, my=TINY)
    ended = pytest_in(workspace, "tests/integration/", "--collect-only", "-q", "--ignore", __file__)
    assert ended.returncode == 0, ended.stdout
    assert sorted(chosen(ended.stdout)) == ["arch_a", "arch_a_mini", "llm_16b_small", "llm_typo"]


def test_names_choose_any_preset_once(presets):
    workspace = presets(llm_a=TINY, llm_large=LARGE, my=TINY)
    given = "--llm-presets=my, llm_large,my"
    ended = pytest_in(workspace, "tests/integration/llm_e2e/", given, "--collect-only", "-q")
    assert chosen(ended.stdout) == ["my", "llm_large"]


@pytest.mark.parametrize(
    ("argument", "device", "said"),
    [
        (
            "--llm-presets=llm_a,llm_ab",
            "cpu",
            "--llm-presets: llm_ab: ValidationError: no such preset\nFix: did you mean 'llm_a'?\n",
        ),
        ("--llm-presets=,", "cpu", "--llm-presets names no preset"),
        ("--llm-presets=llm_a", "gpu", "EULERSTACK_DEVICE: ValidationError: 'gpu' is not the name of a device"),
        ("--llm-steps=1", "cpu", "EULERSTACK_STEPS: ValidationError: '1' is not a number of steps"),
    ],
    ids=("an unknown name", "no name", "the device", "the steps"),
)
def test_a_mistake_in_the_command_is_a_usage_error(presets, argument, device, said):
    workspace = presets(llm_a=TINY)
    ended = pytest_in(workspace, "tests/integration/llm_e2e/", argument, RUN_LLM_E2E="1", EULERSTACK_DEVICE=device)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {said}" in ended.stdout
    assert "Traceback" not in ended.stdout


def test_the_options_are_known_to_a_plain_run_too(presets):
    ended = pytest_in(presets(llm_a=TINY), "--llm-presets=llm_a", "--arch-steps=50", "--mini-lr=1e-3", "--help")
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("-presets=NAMES") == 3


def test_an_open_suite_runs_presets_for_real_and_fails_those_that_fail(presets, tmp_path):
    """Two sound ones, one of them at a learning rate that teaches nothing, and one whose error is in the file."""
    workspace = presets(llm_a=TINY, llm_broken=PRESET.format(**TINY).replace("attention}", "atention}"), arch_a=TINY)
    options = ["--llm-steps=6", "--llm-lr=3e-3", "--arch-steps=3", "--arch-lr=1e-9", f"--basetemp={tmp_path / 'run'}"]
    environment = {"RUN_LLM_E2E": "1", "RUN_ARCH_E2E": "1", "EULERSTACK_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"}
    folders = [f"tests/integration/{name}/" for name in ("llm_e2e", "arch_e2e", "expert_mini_e2e")]
    ended = pytest_in(workspace, *folders, "-v", "-s", *options, **environment)
    said = ended.stdout
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, said
    assert "Traceback" not in said
    line = r"^llm_a: 77,120 parameters, PASS: 7 of 7 laws, loss \d\.\d+ -> \d\.\d+, "
    line += r"on cpu in float32, batch 1 x 64, peak memory: \d\.\d\d GiB, \d+ s$"
    assert re.search(line, said, re.MULTILINE), said
    assert re.search(r"^llm_broken failed at normalize\n.*llm_broken\.yml:6:\d+: ValidationError: ", said, re.MULTILINE)
    assert re.search(r"^arch_a failed at gpu_sanity\n.* SanityError: loss falls within 3 steps: ", said, re.MULTILINE)
    assert "2 failed, 1 passed" in said
    left = {path.name for path in (tmp_path / "run").rglob("*") if path.suffix == ".safetensors"}
    assert not left, "the weights stayed"
    assert not (workspace / "build").exists()
    assert not (workspace / "cache").exists()


def test_the_tutorial_shows_commands_that_exist():
    commands = re.findall(r"^(RUN_\w+)=1 .*?(tests/\S+) --(\w+)-presets", TUTORIAL.read_text(encoding="utf-8"), re.M)
    assert {(gate, folder, suite) for gate, folder, suite in commands} == {
        (gate, f"tests/integration/{FOLDERS[suite]}/", suite) for suite, gate in SUITES.items()
    }

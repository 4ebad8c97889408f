"""The stages by their own functions, on a small preset: what each writes, and what enters its key."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from eulerstack.errors import CompileError
from eulerstack.stages import compile as compile_stage
from eulerstack.stages import cpu_sanity, export, gpu_sanity, normalize, sanity_export, tokenize

STAGES = (normalize, compile_stage, tokenize, sanity_export, cpu_sanity, export, gpu_sanity)
PRESET = """\
schema_version: 1
model: {name: small, d_model: 64, vocab_size: 400, max_seq_len: 64, n_heads: 1, d_ff: 48}
tokenizer_contract: {type: byte_bpe}
embedding: {type: learned, positional: rope}
layer_templates:
  attention: {mixer: {type: attention}, ffn: {type: gated_mlp}}
layer_schedule: [{template: attention, repeat: 2}]
head: {type: causal_lm}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The preset, and its artifacts of every stage that runs in a process of the package."""
    root = tmp_path_factory.mktemp("stages")
    preset, build = root / "small.yml", root / "build"
    preset.write_text(PRESET)
    build.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EULERSTACK_HOME", str(root))
        for stage in (normalize, compile_stage, tokenize, sanity_export, export):
            stage.run(preset, build, build)
    return preset, build


@pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.__name__.rpartition(".")[2])
def test_a_stage_says_all_that_the_graph_asks(stage):
    names = {module.__name__.rpartition(".")[2] for module in STAGES}
    assert set(stage.AFTER) <= names
    assert stage.WORKER in ("front", "package", "stranger")
    assert stage.MODELING in (None, "bytes", "meaning")
    assert stage.TIME_LIMIT > 0
    assert all(Path(name).name == name for name in stage.OUTPUTS)
    assert stage.__doc__.count("->") == 1
    if stage.WORKER == "stranger":
        assert all(path.is_file() for path in cpu_sanity.CHECKS)
        assert callable(stage.script)
    else:
        assert callable(stage.run)


def test_the_checks_are_all_that_their_script_imports():
    """Each of them enters the key of a verdict."""
    folder = cpu_sanity.CHECKS[0].parent
    found, waiting = set(), [cpu_sanity.CHECKS[0]]
    while waiting:
        path = waiting.pop()
        found.add(path)
        words = [line.split()[1] for line in path.read_text().splitlines() if line.startswith(("from ", "import "))]
        waiting += [folder / f"{w}.py" for w in words if (folder / f"{w}.py").is_file()]
        waiting = [path for path in waiting if path not in found]
    assert found == set(cpu_sanity.CHECKS)


def test_keys_are_json_found_without_torch(built):
    preset, build = built
    names = [f"eulerstack.stages.{name}" for name in ("normalize", "compile", "tokenize", "sanity_export")]
    names += ["eulerstack.stages.cpu_sanity", "eulerstack.stages.export", "eulerstack.stages.gpu_sanity"]
    code = (
        "import sys, json; from importlib import import_module; from pathlib import Path\n"
        f"keys = [import_module(n).inputs(Path({str(preset)!r}), Path({str(build)!r})) for n in {names!r}]\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "print(json.dumps(keys))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == [import_module(name).inputs(preset, build) for name in names]


def test_every_stage_writes_what_it_says(built):
    _, build = built
    for stage in (normalize, compile_stage, tokenize, sanity_export, export):
        assert all((build / name).exists() for name in stage.OUTPUTS)
        assert stage.summary(build)
    assert normalize.summary(build) == "2 layers"
    documents = json.loads((build / "tokenize.json").read_text())["documents"]
    assert tokenize.summary(build).endswith(f" tokens of {documents} documents")


def test_predicted_and_exported_parameters_are_equal(built):
    _, build = built
    predicted = json.loads((build / "compile.json").read_text())["costs"]["total"]
    assert json.loads((build / "hf" / "manifest.json").read_text())["parameters"] == predicted
    assert f"{predicted:,} parameters" in compile_stage.summary(build)
    assert f"{predicted:,} parameters" in export.summary(build)


def test_a_comment_changes_the_key_of_normalize_alone(built, tmp_path):
    preset, build = built
    commented = tmp_path / preset.name
    commented.write_text(f"# a comment\n{PRESET}")
    assert normalize.inputs(commented, build) != normalize.inputs(preset, build)
    normalize.run(commented, build, tmp_path)
    assert (tmp_path / "normalize.json").read_bytes() == (build / "normalize.json").read_bytes()


def test_a_verdict_does_not_depend_on_prose_and_code_bytes(built):
    """Code enters by its meaning, through MODELING."""
    names = cpu_sanity.contents(built[1] / "sanity")
    assert "config.json" in names
    assert "model.safetensors" in names
    assert "tokenizer.json" in names
    assert not [name for name in names if name.endswith((".py", ".md"))]


def test_the_stranger_is_given_the_small_directory_and_the_text(built, tmp_path):
    preset, build = built
    script, directory, verdict, *options = cpu_sanity.script(preset, build, tmp_path)
    assert Path(script).name == "checks.py"
    assert (Path(directory), Path(verdict)) == (build / "sanity", tmp_path / "cpu_sanity.json")
    assert options[0] == "--corpus"
    assert Path(options[1]).is_file()


def test_what_is_not_built_yet_is_refused_in_the_preset(tmp_path):
    preset = tmp_path / "later.yml"
    preset.write_text(f"{PRESET}compatibility: {{compile_target: native}}\n")
    normalize.run(preset, tmp_path, tmp_path)
    with pytest.raises(CompileError) as caught:
        compile_stage.run(preset, tmp_path, tmp_path)
    assert str(caught.value).startswith(f"{preset}:9:17: CompileError: ")

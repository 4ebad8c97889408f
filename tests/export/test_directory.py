import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import eulerstack
from eulerstack.errors import ExportError
from eulerstack.export.build import build, build_on_meta
from eulerstack.export.directory import write_directory

STRANGER = Path(__file__).parent / "stranger.py"


def count(payload: dict) -> int:
    return sum(p.numel() for p in build_on_meta(payload).parameters())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture
def export(tokenizer):
    """`export(payload, target, **options)`: write_directory with the rest of its arguments filled in."""

    def write(payload: dict, target: Path, **options):
        given = {"preset_name": "tiny_test", "ir_digest": "0123", "seed": 5, "predicted_params": count(payload)}
        return write_directory(payload, tokenizer, target, **given | options)

    return write


@pytest.mark.parametrize("tied", [True, False])
def test_a_stranger_computes_what_the_package_computes(payload, export, tmp_path, tied):
    """In a process that cannot import the package: load, run, generate, save, load again."""
    config = payload(tie_word_embeddings=tied, dtype="float32", torch_dtype="float32")
    done = export(config, tmp_path / "hf", shard_bytes=50_000)
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", str(STRANGER), str(done.path), str(tmp_path / "again")]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=300)
    seen = torch.load(tmp_path / "again" / "seen.pt")
    model = build(config).eval()
    weights = {k: v for shard in done.path.glob("*.safetensors") for k, v in load_file(shard).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"] if tied else [], [])
    with torch.no_grad():
        logits = model(input_ids=seen["ids"], use_cache=False).logits
    assert torch.equal(logits, seen["logits"])
    assert seen["parameters"] == done.parameters


def test_the_manifest_is_true(payload, export, tmp_path):
    done = export(payload(), tmp_path / "hf")
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert {name: record["sha256"] for name, record in manifest["files"].items()} == {
        name: digest for name, digest in digests(done.path).items() if name != "manifest.json"
    }
    sizes = {name: record["size"] for name, record in manifest["files"].items()}
    assert sizes == {name: (done.path / name).stat().st_size for name in sizes}
    assert sum(sizes.values()) == done.bytes
    assert (manifest["parameters"], manifest["buffers"]) == (count(payload()), 3)
    assert manifest["preset"] == "tiny_test"
    assert manifest["ir_digest"] == "0123"
    assert manifest["variant"] == "full"
    assert manifest["seed"] == 5
    assert manifest["tokenizer"]["stand_in"] is True
    assert manifest["versions"]["torch"] == version("torch")
    assert manifest["versions"]["eulerstack"] == eulerstack.__version__


def test_code_ships_byte_for_byte_and_no_more_than_needed(payload, export, tmp_path):
    folder = export(payload(), tmp_path / "hf").path
    modeling = Path(eulerstack.__file__).parent / "modeling"
    shipped = {path.name for path in folder.glob("*.py")} - {"modeling_eulerstack_tiny_test.py"}
    assert all((folder / name).read_bytes() == (modeling / name).read_bytes() for name in shipped)
    assert {name for name in shipped if name.startswith(("mixer_", "ffn_"))} == {
        "ffn_gated_mlp.py",
        "ffn_moe.py",
        "mixer_attention.py",
    }


def test_the_config_names_the_entry_and_the_tokenizers_ids(payload, export, tmp_path):
    folder = export(payload(), tmp_path / "hf").path
    config = json.loads((folder / "config.json").read_text())
    entry = config["auto_map"]["AutoModelForCausalLM"].partition(".")[0]
    assert (folder / f"{entry}.py").is_file()
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (0, 1, None)
    assert json.loads((folder / "generation_config.json").read_text()).keys() == {
        "bos_token_id",
        "eos_token_id",
        "transformers_version",
    }


@pytest.mark.parametrize(("variant", "words"), [("full", "Stand-in"), ("small", "Small variant")])
def test_the_readme_says_what_it_is(payload, export, tmp_path, variant, words):
    text = (export(payload(), tmp_path / "hf", variant=variant).path / "README.md").read_text()
    assert words in text
    assert "a stand-in for x/y" in text
    assert f"{count(payload()):,}" in text
    assert "| sparse | 1 | attention | moe |" in text


def test_the_readme_quotes_every_line_about_a_stand_in(payload, export, tmp_path):
    text = (export(payload(), tmp_path / "hf").path / "README.md").read_text()
    paragraph = text[text.index("> **Stand-in") :].partition("\n\n")[0].partition("\n| | |")[0].splitlines()
    assert len(paragraph) > 1
    assert all(line.startswith("> ") for line in paragraph)
    assert paragraph[-1] == "> Replace it before you train on text."
    assert "mostly reserved tokens" in text


def test_the_readme_tells_kinds_of_layers_apart(payload, export, tmp_path):
    given = payload(block_pattern=["dense", "sparse", "dense.1"])
    given["blocks"]["dense.1"] = json.loads(json.dumps(given["blocks"]["dense"]))
    given["blocks"]["dense.1"]["norm"]["position"] = "post"
    given["blocks"]["dense.1"]["residual"]["scaling"] = 0.5
    text = (export(given, tmp_path / "hf").path / "README.md").read_text()
    assert "| kind of layer | count | mixer | feed-forward | differs in |\n|" in text
    assert "| dense | 1 | attention | gated_mlp | norm.position pre, residual.scaling 1.0 |" in text
    assert "| dense.1 | 1 | attention | gated_mlp | norm.position post, residual.scaling 0.5 |" in text
    assert "| sparse | 1 | attention | moe |  |" in text


def test_two_exports_have_the_same_bytes(payload, export, tmp_path):
    a = export(payload(), tmp_path / "a", threads=1)
    b = export(payload(), tmp_path / "b", threads=3)
    assert digests(a.path) == digests(b.path)
    c = export(payload(), tmp_path / "c", seed=6)
    differing = {name for name, digest in digests(a.path).items() if digests(c.path)[name] != digest}
    assert differing == {"model.safetensors", "manifest.json", "README.md"}


def test_a_wrong_prediction_writes_nothing(payload, export, tmp_path):
    with pytest.raises(ExportError, match=f"has {count(payload()):,} parameters, but {count(payload()) + 1:,}"):
        export(payload(), tmp_path / "hf", predicted_params=count(payload()) + 1)
    assert names(tmp_path) == []


def test_a_full_disk_is_told_before_it_is_full(payload, export, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ExportError, match=r"needs 0\.02 GB"):
        export(payload(), tmp_path / "hf")
    assert names(tmp_path) == []


def test_what_is_at_the_target(payload, export, tmp_path):
    target = tmp_path / "hf"
    target.mkdir()
    first = digests(export(payload(), target).path)  # an empty directory may be filled
    with pytest.raises(ExportError, match="already holds an export"):
        export(payload(), target, seed=6)
    assert digests(target) == first
    export(payload(), target, seed=6, replace=True)
    assert digests(target)["model.safetensors"] != first["model.safetensors"]
    (target / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"notes\.txt"):
        export(payload(), target, replace=True)
    (target / "manifest.json").write_text("{}")
    with pytest.raises(ExportError, match="something else"):
        export(payload(), target, replace=True)
    assert names(tmp_path) == ["hf"]


def test_a_link_or_a_file_is_not_written_through(payload, export, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("file", "link"):
        with pytest.raises(ExportError, match="not a directory"):
            export(payload(), tmp_path / name)
    assert names(tmp_path) == ["file", "link", "real"]


HALF = """
import pickle, resource, sys, time
from eulerstack.errors import ExportError
from eulerstack.export.directory import write_directory
given, target, how = pickle.load(open(sys.argv[1], "rb")), sys.argv[2], sys.argv[3]
def stop(done, total):
    print("writing", flush=True)
    time.sleep(600)
if how == "limited":
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    write_directory(*given["args"], target, **given["options"], progress=stop if how == "stopped" else None)
except ExportError as error:
    print(error)
"""


@pytest.fixture
def half(payload, tokenizer, tmp_path):
    """Starts a process that replaces the export at a target and gets no further than the weights."""

    def start(target: Path, how: str) -> subprocess.Popen:
        options = {
            "preset_name": "p",
            "ir_digest": "",
            "seed": 9,
            "predicted_params": count(payload()),
            "replace": True,
        }
        (tmp_path / "given").write_bytes(pickle.dumps({"args": (payload(), tokenizer), "options": options}))
        command = [sys.executable, "-c", HALF, str(tmp_path / "given"), str(target), how]
        environment = os.environ | {"PYTHONPATH": str(Path(eulerstack.__file__).parents[1])}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return start


@pytest.mark.parametrize("before", [False, True])
def test_a_killed_export_leaves_the_target_as_it_was(payload, export, half, tmp_path, before):
    place = tmp_path / "place"
    old = digests(export(payload(), place / "hf").path) if before else None
    process = half(place / "hf", "stopped")
    assert process.stdout.readline() == "writing\n"
    with pytest.raises(ExportError, match="another process"):
        export(payload(), place / "hf", replace=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert names(place) == [".hf.partial"] + (["hf"] if before else [])
    assert not before or digests(place / "hf") == old
    again = export(payload(), place / "hf", replace=True)
    assert names(place) == ["hf"]
    assert digests(again.path) == digests(export(payload(), tmp_path / "clean").path)


def test_a_write_that_fails_keeps_the_old_export(payload, export, half, tmp_path):
    old = digests(export(payload(), tmp_path / "place" / "hf").path)
    said, _ = half(tmp_path / "place" / "hf", "limited").communicate(timeout=120)
    assert "ExportError: cannot be written: File too large" in said
    assert digests(tmp_path / "place" / "hf") == old
    assert names(tmp_path / "place") == ["hf"]


TWO = """
import sys
sys.modules["eulerstack"] = None
from transformers import AutoModel, AutoModelForCausalLM
first, second, saved = sys.argv[1:]
models = [AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True) for path in (first, second)]
models[1].save_pretrained(saved)
models.append(AutoModel.from_pretrained(saved, trust_remote_code=True))
print(*(type(model).__module__.rpartition(".")[2] for model in models))
"""


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_directories_of_one_name_do_not_mix(payload, export, tmp_path, order):
    for name in order:
        export(payload(), tmp_path / name / "hf", preset_name=name)
    script = tmp_path / "both.py"
    script.write_text(TWO)
    paths = [tmp_path / order[0] / "hf", tmp_path / order[1] / "hf", tmp_path / "saved"]
    environment = dict(os.environ, HF_HOME=str(tmp_path / "home"))
    done = subprocess.run(
        [sys.executable, "-I", script, *paths], capture_output=True, text=True, env=environment, check=True
    )
    first, second = (f"modeling_eulerstack_{name}" for name in order)
    assert done.stdout.split() == [first, second, second]

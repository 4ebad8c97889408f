import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from eulerstack.errors import SanityError
from eulerstack.stages import cpu_sanity

CHECKS = cpu_sanity.CHECKS[0]


def test_the_script_judges_a_directory_as_a_stranger(stranger, hybrid, corpus_file, tmp_path):
    """In the shape the graph keeps: sorted, without times and paths; and the stage says it in a line."""
    out = tmp_path / "cpu_sanity.json"
    stranger(CHECKS, hybrid, out, "--corpus", corpus_file)
    text = out.read_text()
    verdict = json.loads(text)
    assert verdict["verdict"] == "PASS", verdict["reason"]
    assert text == json.dumps(verdict, indent=1, sort_keys=True) + "\n"
    assert set(verdict) == {"verdict", "reason", "checks", "training", "run"}
    assert all(set(check) == {"name", "ok", "figure", "detail"} for check in verdict["checks"])
    assert str(hybrid.parent) not in text
    assert (verdict["run"]["device"], verdict["run"]["dtype"], verdict["run"]["steps"]) == ("cpu", "float32", 20)
    assert "peak memory" not in text
    assert verdict["checks"][-1]["name"] == "loss falls within 20 steps"
    cpu_sanity.check(tmp_path)
    first, last = verdict["training"]["initial_loss"], verdict["training"]["final_loss"]
    assert last < first
    assert cpu_sanity.summary(tmp_path) == f"PASS: 7 of 7 laws, loss {first} -> {last}"


@pytest.fixture(scope="module")
def verdicts(judge, hybrid, tmp_path_factory):
    """On the sound directory twice, on random tokens, and on directories that are not whole."""
    root = tmp_path_factory.mktemp("broken")
    folders = {name: root / name for name in ("no_tensor", "odd_tensor", "no_code", "no_syntax", "no_tokenizer")}
    for folder in folders.values():
        shutil.copytree(hybrid, folder)
    for name in ("no_tensor", "odd_tensor"):
        (weights,) = folders[name].glob("*.safetensors")
        tensors = load_file(weights)
        tensor = tensors.pop("model.layers.1.mixer.q_proj.weight")
        if name == "odd_tensor":
            tensors["model.layers.1.mixer.q_proj.weight"] = tensor[:-1].clone()
        save_file(tensors, weights, {"format": "pt"})
    (folders["no_code"] / "norm.py").unlink()
    (folders["no_syntax"] / "norm.py").write_text("class Norm(:\n")
    (folders["no_tokenizer"] / "tokenizer.json").unlink()
    np.save(root / "shard.npy", np.random.default_rng(7).integers(0, 300, 2 * 2 * 64 + 99).astype(np.uint16))
    shard = [hybrid, "--tokens", root / "shard.npy"]
    shorter = [*shard, "--rows", "1", "--length", "40"]
    return judge(folders | {"sound": hybrid, "again": hybrid, "tokens": shard, "shorter": shorter})


def test_the_verdict_is_the_same_every_time(verdicts):
    assert verdicts["sound"] == verdicts["again"]
    assert verdicts["sound"]["verdict"] == "PASS"


def test_token_shards_are_read_as_the_full_size_check_does(verdicts):
    """In batches as long as was asked, 512 if nothing was, and no longer than the model's limit, here 64."""
    assert verdicts["tokens"]["verdict"] == "PASS", verdicts["tokens"]["reason"]
    assert verdicts["tokens"]["run"]["batch"] == [2, 64]
    assert verdicts["shorter"]["run"]["batch"] == [1, 40]
    assert verdicts["tokens"]["training"]["initial_loss"] != verdicts["sound"]["training"]["initial_loss"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_tensor", "missing keys: model.layers.1.mixer.q_proj.weight"),
        ("odd_tensor", "RuntimeError: "),
        ("no_code", "norm.py"),
        ("no_syntax", "SyntaxError"),
        ("no_tokenizer", "tokenizer"),
    ],
)
def test_a_directory_that_does_not_load_is_a_verdict_too(verdicts, name, said):
    verdict = verdicts[name]
    assert verdict["verdict"] == "FAIL"
    (check,) = verdict["checks"]
    assert check["name"] == "loads from disk"
    assert check["figure"] == "no model"
    assert said in check["detail"]
    assert verdict["training"] is None


def test_a_failed_verdict_is_an_error_of_the_stage_law_by_law(tmp_path):
    checks = [
        {"name": "shapes link", "ok": True, "figure": "(2, 26, 300)", "detail": ""},
        {"name": "causal", "ok": False, "figure": "3e-01 sd", "detail": "first apart after layer 1 (template local)"},
    ]
    verdict = {"verdict": "FAIL", "reason": "causal", "checks": checks, "training": None}
    (tmp_path / "cpu_sanity.json").write_text(json.dumps(verdict))
    with pytest.raises(SanityError) as caught:
        cpu_sanity.check(tmp_path)
    assert str(caught.value) == (
        "cpu_sanity.json: SanityError: causal: 3e-01 sd, first apart after layer 1 (template local)\n"
        "Fix: mend the layer named here, then run doit again\n"
        "See: docs/tutorials/06_sanity_training.md"
    )
    assert cpu_sanity.summary(tmp_path) == "FAIL: 1 of 2 laws"

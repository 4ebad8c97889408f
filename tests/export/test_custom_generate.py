"""Exported models that generate in their own way, as someone without the package calls them."""

import json
import os
import subprocess
import sys

import pytest

from eulerstack.errors import ExportError
from eulerstack.export.model import export_model
from eulerstack.export.tokenizer import extra_tokens, resolve
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.modeling.recipe import TEXT

STRANGER = """
import sys
sys.modules["eulerstack"] = None
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, saved = sys.argv[1:]
load = lambda path: AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True, dtype=torch.float64).eval()
model = load(folder)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
assert tokenizer("</think>", add_special_tokens=False)["input_ids"] == [model.config.transition["token_id"]]
ids = torch.randint(5, 300, (2, 7), generator=torch.Generator().manual_seed(0))
mask = torch.ones_like(ids)
mask[0, :3] = 0
call = dict(attention_mask=mask, do_sample=False, pad_token_id=0, eos_token_id=None)
passes = []
model.model.register_forward_hook(lambda *_: passes.append(1))

plain = type(model).generate(model, ids, max_new_tokens=9, **call)
assert torch.equal(model.generate(ids, max_new_tokens=9, **call), plain)
beams = dict(call, num_beams=2, max_new_tokens=5)
assert torch.equal(model.generate(ids, **beams), type(model).generate(model, ids, **beams))

named = dict(call, custom_generate=folder, trust_remote_code=True)
answer = model.generate(ids, **named)
assert answer.shape == (2, 7 + 4), answer.shape
everything = model.generate(ids, return_phases=True, **named)
assert everything.all_sequences.shape == (2, 7 + 6 + 4)
assert everything.all_sequences[0, 7 + 5] == model.config.transition["token_id"]
assert torch.equal(everything.sequences, answer)
assert torch.equal(type(model).generate(model, ids, **named), answer)
assert model.generate(ids, max_new_tokens=8, **named).shape == (2, 7 + 2)
assert torch.equal(model.generate(ids, phases=True, **call), answer)

model.save_pretrained(saved)
assert torch.equal(load(saved).generate(ids, **dict(named, custom_generate=saved)), answer)
batch = model.phase_labels(ids, prompt_lengths=2, attention_mask=mask)
model.train()(input_ids=ids, attention_mask=mask, **batch).loss.backward()
assert all(p.grad is not None for p in model.parameters())
print("done", len(passes) > 0)
"""


def tree(**changes) -> dict:
    return {
        "schema_version": 1,
        "model": {"name": "own", "d_model": 32, "vocab_size": 300, "max_seq_len": 64, "n_heads": 4, "dtype": "float32"},
        "tokenizer_contract": {"type": "byte_bpe", "add_eos": False},
        "embedding": {"type": "learned", "positional": "rope"},
        "layer_templates": {"one": {"mixer": {"type": "attention"}, "ffn": {"type": "gated_mlp"}}},
        "layer_schedule": [{"template": "one", "repeat": 2}],
        "head": {"type": "causal_lm"},
    } | changes


MTP = {"type": "causal_lm_mtp", "mtp": {"head_template": "one", "n_predict": 2}}
MODES = [{"name": "think", "max_tokens": 6, "visible_to_user": False}, {"name": "answer", "max_tokens": 4}]
SPECIAL = {"type": "special_token", "token": "</think>"}


def test_a_stranger_generates_in_phases_and_with_drafts(tmp_path):
    untied = MTP | {"tie_weights": False}  # a tied head without training says the transition token again after it
    ir = normalize_to_ir(tree(head=untied, execution_modes=MODES, transition=SPECIAL))
    export_model(ir, "own", tmp_path / "hf")
    (tmp_path / "stranger.py").write_text(STRANGER)
    done = subprocess.run(
        [sys.executable, "-I", tmp_path / "stranger.py", tmp_path / "hf", tmp_path / "saved"],
        capture_output=True,
        text=True,
        env=dict(os.environ, HF_HOME=str(tmp_path / "home")),
        check=False,
    )
    assert done.stdout.strip() == "done True", done.stderr


@pytest.mark.parametrize("own", [{"head": MTP}, {"execution_modes": MODES}])
def test_the_file_is_in_the_directory_and_its_manifest(own, tmp_path):
    export_model(normalize_to_ir(tree(**own)), "own", tmp_path / "hf")
    assert (tmp_path / "hf" / "custom_generate" / "generate.py").read_text() == TEXT
    assert "custom_generate/generate.py" in json.loads((tmp_path / "hf" / "manifest.json").read_text())["files"]


def test_a_model_that_generates_as_any_other_has_no_such_file(tmp_path):
    export_model(normalize_to_ir(tree()), "own", tmp_path / "hf")
    assert not (tmp_path / "hf" / "custom_generate").exists()


def test_the_transition_token_is_in_the_tokenizer_and_its_id_in_the_configuration(tmp_path):
    exported = export_model(normalize_to_ir(tree(transition=SPECIAL)), "own", tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["transition"] == SPECIAL | {"token_id": exported.tokenizer.id_of("</think>")}
    assert config["transition"]["token_id"] < 300
    assert exported.tokenizer.size == 300


def test_a_transition_token_beyond_the_vocabulary_is_an_error(tmp_path, workspace):
    (workspace / "full").mkdir()
    resolve({"type": "byte_bpe"}, 300).write(workspace / "full")
    given = tree(transition=SPECIAL) | {"tokenizer_contract": {"type": "hf", "pretrained": "full"}}
    with pytest.raises(ExportError, match="301 tokens, the model's vocabulary 300"):
        export_model(normalize_to_ir(given), "own", tmp_path / "hf")


def test_extra_tokens_of_a_block_of_json_and_of_nothing():
    ir = normalize_to_ir(tree(transition=SPECIAL))
    assert extra_tokens(ir.transition) == extra_tokens(SPECIAL) == ("</think>",)
    assert extra_tokens(None) == extra_tokens({"type": "budget_exhausted", "token": None}) == ()

import inspect
import math

import numpy as np
import pytest
import torch

from eulerstack.data.prepare import tokenize_jsonl
from eulerstack.errors import CompatibilityError, CompileError, DataError, EulerStackError, SanityError
from eulerstack.export.tokenizer import Contract, resolve
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.training.sanity import (
    SanityResult,
    build_model_from_ir,
    build_sanity_model,
    run_e2e_training,
    run_sanity_training,
)

SIZES = {"vocab_size": 61, "d_model": 24, "n_heads": 4, "n_layers": 2, "max_seq_len": 32}


def repeating(rows=9, length=17, vocab=61) -> torch.Tensor:
    """Sequences that count upwards, each from its own start: easy to learn."""
    return (torch.arange(length) + 5 * torch.arange(rows)[:, None]) % vocab


def names(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def defaults(function) -> dict:
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.default is not inspect.Parameter.empty}


def test_signatures():
    assert names(build_sanity_model) == ["vocab_size", "d_model", "n_heads", "n_layers", "max_seq_len", "ir"]
    assert defaults(build_sanity_model) == {"ir": None}
    assert names(build_model_from_ir) == ["ir", "device", "dtype"]
    assert defaults(build_model_from_ir) == {}
    assert names(run_sanity_training) == ["model", "data", "batch_size", "max_steps", "lr", "seed", "device"]
    shared = {"seed": 42}
    assert defaults(run_sanity_training).items() >= (shared | {"batch_size": 16, "max_steps": 50}).items()
    assert defaults(run_sanity_training)["device"] == "cpu"
    assert names(run_e2e_training)[:5] == ["model", "dataset", "batch_size", "lr", "max_steps"]
    assert names(run_e2e_training)[5:] == ["device", "use_amp", "seed"]
    full = {"batch_size": 2, "lr": 1e-4, "max_steps": 20, "use_amp": True}
    assert defaults(run_e2e_training).items() >= (shared | full).items()


def test_without_an_ir_the_model_is_a_llama_of_the_given_sizes():
    model = build_sanity_model(**SIZES)
    config = model.config
    assert (config.vocab_size, config.hidden_size, config.num_attention_heads) == (61, 24, 4)
    assert (config.num_hidden_layers, config.max_position_embeddings) == (2, 32)
    assert {block["mixer"]["type"] for block in config.blocks.values()} == {"attention"}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_with_an_ir_its_topology_stays(hybrid_ir):
    model = build_sanity_model(**SIZES, ir=hybrid_ir)
    kinds = [(block["mixer"]["type"], block["ffn"]["type"]) for block in model.config.blocks.values()]
    assert set(kinds) == {("mamba2", "gated_mlp"), ("attention", "moe")}
    assert model.config.num_hidden_layers >= 3
    assert (model.config.vocab_size, model.config.hidden_size) == (61, 24)
    assert model(input_ids=repeating(2)).logits.shape == (2, 17, 61)


@pytest.mark.parametrize("with_ir", [False, True])
def test_sizes_that_do_not_go_together_are_refused(hybrid_ir, with_ir):
    with pytest.raises(CompatibilityError):
        build_sanity_model(**SIZES | {"n_heads": 5}, ir=hybrid_ir if with_ir else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_full_model_is_built_in_the_asked_precision(hybrid_ir, dtype):
    model = build_model_from_ir(hybrid_ir, "cpu", dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model.config.num_hidden_layers == 3
    assert torch.get_default_dtype() == torch.float32


def test_a_fresh_model_is_the_seed_s_and_disturbs_no_other(hybrid_ir):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two = (build_model_from_ir(hybrid_ir, "cpu", torch.float32).state_dict() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_is_not_built_yet_is_refused(hybrid_ir):
    raw = {
        "schema_version": 1,
        "model": {"name": "later", "d_model": 64, "vocab_size": 300, "max_seq_len": 64, "n_heads": 4},
        "tokenizer_contract": {"type": "byte_bpe"},
        "embedding": {"type": "learned", "positional": "rope"},
        "layer_templates": {"a": {"mixer": {"type": "attention"}, "ffn": {"type": "mlp"}}},
        "layer_schedule": [{"template": "a"}],
        "head": {"type": "causal_lm"},
        "compatibility": {"compile_target": "native"},
    }
    with pytest.raises(CompileError, match="native"):
        build_model_from_ir(normalize_to_ir(raw), "cpu", torch.float32)


def test_a_run_learns_and_says_so(hybrid_ir):
    model = build_sanity_model(**SIZES, ir=hybrid_ir)
    result = run_sanity_training(model, repeating(), batch_size=4, max_steps=12, lr=1e-2)
    assert result.steps == len(result.losses) == 12
    assert result.loss_decreased
    assert result.passed
    assert math.isclose(result.initial_loss, math.log(61), rel_tol=0.2)
    assert result.summary() == (
        "Sanity training: PASS\n"
        "  Steps: 12\n"
        f"  Initial loss: {result.initial_loss:.4f}\n"
        f"  Final loss: {result.final_loss:.4f}\n"
        "  Loss decreased: True"
    )


def test_a_run_that_does_not_learn_fails():
    result = run_sanity_training(build_sanity_model(**SIZES), repeating(), max_steps=4, lr=0.0)
    assert not result.loss_decreased
    assert result.summary().startswith("Sanity training: FAIL\n  Steps: 4\n")
    assert result.summary().endswith("\n  Loss decreased: False")


def test_a_diverging_run_stops_and_fails():
    model = build_sanity_model(**SIZES)
    with torch.no_grad():
        model.model.layers[1].mixer.o_proj.weight.fill_(math.nan)
    result = run_sanity_training(model, repeating(), max_steps=4)
    assert result.steps == 1
    assert not result.passed
    assert "Final loss: nan" in result.summary()


def test_the_summary_of_made_up_losses():
    assert SanityResult((6.25, 5.0, 4.0)).summary() == (
        "Sanity training: PASS\n  Steps: 3\n  Initial loss: 6.2500\n  Final loss: 4.0000\n  Loss decreased: True"
    )


def test_a_seed_decides_the_run(hybrid_ir):
    def losses(seed: int) -> tuple[float, ...]:
        model = build_sanity_model(**SIZES, ir=hybrid_ir)
        return run_sanity_training(model, repeating(), batch_size=2, max_steps=4, seed=seed).losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_data_is_shuffled_once_an_epoch_and_read_again():
    """Three sequences in batches of two: batches of 2, 1, 2, 1, each sequence once an epoch."""
    seen = []
    model = build_sanity_model(**SIZES)
    model.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["input_ids"][:, 0].tolist()), with_kwargs=True
    )
    run_sanity_training(model, repeating(3), batch_size=2, max_steps=4)
    assert [len(batch) for batch in seen] == [2, 1, 2, 1]
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == [0, 5, 10]


def test_e2e_runs_on_the_cpu_without_amp(hybrid_ir):
    model = build_model_from_ir(hybrid_ir, "cpu", torch.float32)
    result = run_e2e_training(model, repeating(vocab=300), batch_size=3, lr=1e-2, max_steps=6, device="cpu")
    assert result.steps == 6
    assert result.loss_decreased


@pytest.mark.parametrize("kind", [list, np.asarray, lambda x: [{"input_ids": row} for row in x]])
def test_rows_of_many_kinds(kind):
    data = kind(repeating(4).numpy().astype(np.uint16))
    expected = run_sanity_training(build_sanity_model(**SIZES), repeating(4), max_steps=2).losses
    assert run_sanity_training(build_sanity_model(**SIZES), data, max_steps=2).losses == expected


def test_a_tokenized_dataset(tmp_path):
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "one two three four five six seven eight nine ten eleven twelve thirteen"}\n' * 5)
    data = tokenize_jsonl(text, resolve(Contract(type="byte_bpe"), 300), max_seq_len=16)
    model = build_sanity_model(**SIZES | {"vocab_size": 300})
    assert run_sanity_training(model, data, batch_size=3, max_steps=6, lr=1e-2).passed


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (torch.full((3, 8), 61), "token id 61 with a vocabulary of 61"),
        (torch.tensor([[3, -2, 5]]), "token id -2 with a vocabulary of 61"),
        ([], "not one sequence"),
        (torch.empty(0, 8, dtype=torch.long), "not one sequence"),
        ([[1, 2, 3], [1, 2]], "not sequences of one length"),
        ([[1]], "two tokens or more"),
        (torch.arange(9), "two tokens or more"),
        ([[0.5, 1.5]], "token ids are integers, not torch.float64"),
    ],
)
def test_data_that_no_model_can_read(data, said):
    with pytest.raises(DataError, match=said):
        run_sanity_training(build_sanity_model(**SIZES), data, max_steps=2)


@pytest.mark.parametrize("wrong", [{"max_steps": 0}, {"batch_size": 0}])
def test_no_steps_are_an_error(wrong):
    with pytest.raises(SanityError):
        run_sanity_training(build_sanity_model(**SIZES), repeating(), **wrong)


def test_errors_have_three_lines():
    with pytest.raises(EulerStackError) as caught:
        run_sanity_training(build_sanity_model(**SIZES), [])
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["dataset", "Fix", "See"]

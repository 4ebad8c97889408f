"""Each named heuristic: what it finds, where it keeps quiet, and that it can be switched off."""

import copy

import pytest

from eulerstack.errors import ValidationError
from eulerstack.language.load import check
from eulerstack.language.realism import NAMES, judge_realism


def moe(**options):
    return {"type": "moe", "moe": {"experts": 4, "top_k": 2} | options}


def attention(**options):
    return {"type": "attention", "attention": options}


HASH = {"type": "hash", "hash_salt": 1}
FINDS = {
    "head_dim_range": ({"model": {"n_heads": 16}}, "model.n_heads"),
    "moe_expert_ratio": ({"block": {"ffn": moe(experts=1025)}}, "layer_templates.block.ffn.moe.experts"),
    "affinity_consistency": (
        {"block": {"ffn": moe(affinity="sqrt_softplus")}},
        "layer_templates.block.ffn.moe.affinity",
    ),
    "hash_routing_first_layers": ({"block": {"ffn": moe(routing=HASH)}}, "layer_schedule[0].template"),
    "seq_len_ratio": ({"model": {"max_seq_len": 256 * 64 + 1}}, "model.max_seq_len"),
    "dropout_regularization": ({"block": {"mixer": {"type": "mamba"}}, "repeat": 17}, "training_hints"),
    "family_hint_consistency": ({"model": {"family_hint": "Mamba-2"}}, "model.family_hint"),
    "vocab_tokenizer_consistency": (
        {"tokenizer_contract": {"type": "hf", "pretrained": "openai-community/gpt2"}, "model": {"vocab_size": 50256}},
        "model.vocab_size",
    ),
    "tie_weight_consistency": ({"head": {"tie_weights": False}}, "head.tie_weights"),
    "rope_scaling_factor": (
        {"embedding": {"rope_scaling": {"type": "linear", "factor": 33}}},
        "embedding.rope_scaling.factor",
    ),
    "mla_latent_dim_range": (
        {"block": {"mixer": attention(latent_dim=15)}},
        "layer_templates.block.mixer.attention.latent_dim",
    ),
    "execution_modes_budget": ({"execution_modes": [{"name": "a", "max_tokens": 129}]}, "execution_modes"),
    "depth_gating_capacity_extreme": (
        {"entry": {"depth_gating": {"capacity": 0.99}}},
        "layer_schedule[0].depth_gating.capacity",
    ),
    "integrator_steps_range": (
        {"schedule": [{"integrator": {"type": "discrete", "steps": 33, "body": "block"}}]},
        "layer_schedule[0].integrator.steps",
    ),
    "memory_hidden_range": (
        {"block": {"memory": {"type": "associative", "params": {"hidden": 2049}}}},
        "layer_templates.block.memory.params.hidden",
    ),
    "shape_change_direction": (
        {"block": {"shape_change": {"d_out": 257}}},
        "layer_templates.block.shape_change.d_out",
    ),
    "ttt_inner_lr_range": (
        {"block": {"mixer": {"type": "ttt_layer", "ttt": {"inner_lr": 1.01}}}},
        "layer_templates.block.mixer.ttt.inner_lr",
    ),
}
QUIET = {
    "head_dim_range": {"model": {"n_heads": 8}},
    "moe_expert_ratio": {"block": {"ffn": moe(experts=1024, capacity_factor=0.5)}},
    "affinity_consistency": {"block": {"ffn": moe(affinity="sqrt_softplus", bias_correction={"enabled": True})}},
    "hash_routing_first_layers": {"block": {"ffn": moe(routing=HASH)}, "repeat": 1},
    "seq_len_ratio": {"model": {"max_seq_len": 256 * 65}, "block": {"mixer": attention(window=64)}},
    "dropout_regularization": {"block": {"mixer": {"type": "mamba"}}, "repeat": 16},
    "family_hint_consistency": {"model": {"family_hint": "llama"}},
    "vocab_tokenizer_consistency": {
        "tokenizer_contract": {"type": "hf", "pretrained": "gpt2"},
        "model": {"vocab_size": 50257},
    },
    "tie_weight_consistency": {"head": {"tie_weights": False}, "embedding": {"tie_word_embeddings": False}},
    "rope_scaling_factor": {"embedding": {"rope_scaling": {"type": "linear", "factor": 32}}},
    "mla_latent_dim_range": {"block": {"mixer": attention(latent_dim=192)}},
    "execution_modes_budget": {"execution_modes": [{"name": "a", "max_tokens": 128}]},
    "depth_gating_capacity_extreme": {"entry": {"depth_gating": {"capacity": 0.1}}},
    "integrator_steps_range": {"schedule": [{"integrator": {"type": "discrete", "steps": 32, "body": "block"}}]},
    "memory_hidden_range": {"block": {"memory": {"type": "associative", "params": {"hidden": 2048}}}},
    "shape_change_direction": {"block": {"shape_change": {"d_out": 256}}},
    "ttt_inner_lr_range": {"block": {"mixer": {"type": "ttt_layer", "ttt": {"inner_lr": 1.0}}}},
}
# These have a figure to compare or an error of their own; tests below.
ELSEWHERE = {"target_params_mismatch", "negative_dropout"}


def changed(plain, change):
    data = copy.deepcopy(plain)
    data["layer_templates"]["block"] |= change.get("block", {})
    data["layer_schedule"][0]["repeat"] = change.get("repeat", 2)
    data["layer_schedule"][0] |= change.get("entry", {})
    data["layer_schedule"] = change.get("schedule", data["layer_schedule"])
    for key in change.keys() - {"block", "repeat", "entry", "schedule"}:
        value = change[key]
        replaces = isinstance(value, list) or key == "tokenizer_contract"
        data[key] = value if replaces else data.get(key, {}) | value
    return data


def found(data, **options):
    """What the rules of realism say; they end with their name."""
    return [(w.where, w.what) for w in check(data, **options).warnings if w.what.endswith("]")]


def test_every_rule_has_its_tests():
    assert set(FINDS) | ELSEWHERE == set(QUIET) | ELSEWHERE == set(NAMES)


@pytest.mark.parametrize("name", FINDS)
def test_finds(plain, name):
    change, where = FINDS[name]
    ((place, what),) = found(changed(plain, change))
    assert place == where
    assert what.endswith(f"[{name}]")


@pytest.mark.parametrize("name", FINDS)
def test_is_switched_off_by_its_name(plain, name):
    assert found(changed(plain, FINDS[name][0]), disabled={name}) == []


@pytest.mark.parametrize("name", QUIET)
def test_keeps_quiet(plain, name):
    assert [what for _, what in found(changed(plain, QUIET[name])) if name in what] == []


MORE = {
    "a narrow head": ("head_dim_range", {"model": {"head_dim": 30}}),
    "a wide head": ("head_dim_range", {"model": {"head_dim": 258}}),
    "little capacity": ("moe_expert_ratio", {"block": {"ffn": moe(capacity_factor=0.4)}}),
    "a window taken away": (
        "seq_len_ratio",
        {
            "model": {"max_seq_len": 256 * 65},
            "block": {"mixer": attention(window=64)},
            "entry": {"override": {"attention": {"window": None}}},
        },
    ),
    "many experts": ("dropout_regularization", {"block": {"ffn": moe()}, "repeat": 17}),
    "a llama with mamba": (
        "family_hint_consistency",
        {"model": {"family_hint": "llama"}, "block": {"mixer": {"type": "mamba"}}},
    ),
    "a wide latent": ("mla_latent_dim_range", {"block": {"mixer": attention(latent_dim=193)}}),
    "little depth": ("depth_gating_capacity_extreme", {"entry": {"depth_gating": {"capacity": 0.09}}}),
    "slow learning": ("ttt_inner_lr_range", {"block": {"mixer": {"type": "ttt_layer", "ttt": {"inner_lr": 9e-7}}}}),
    "embedding untied": ("tie_weight_consistency", {"embedding": {"tie_word_embeddings": False}}),
}


@pytest.mark.parametrize("name", MORE)
def test_finds_also(plain, name):
    rule, change = MORE[name]
    assert [what.split("[")[-1] for _, what in found(changed(plain, change))] == [f"{rule}]"]


BLOCKS = {
    "negative_dropout": {"training_hints": {"dropout": -0.5}},
    "rope_scaling_factor": {"embedding": {"rope_scaling": {"type": "linear", "factor": -1}}},
    "moe_expert_ratio": {"block": {"ffn": moe(experts=4097)}},
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_unless_switched_off(plain, name):
    data = changed(plain, BLOCKS[name])
    with pytest.raises(ValidationError, match=rf"\[{name}\]"):
        check(data)
    check(data, disabled=[name])


@pytest.mark.parametrize(("estimate", "count"), [(699, 1), (700, 0), (1300, 0), (1301, 1)])
def test_target_params(plain, estimate, count):
    plain["model"]["target_params"] = 1000
    checked = check(plain)
    assert len(judge_realism(checked, estimate=estimate)) == count
    assert judge_realism(checked, estimate=estimate, disabled=["target_params_mismatch"]) == ()


def test_no_target_no_finding(plain):
    assert judge_realism(check(plain), estimate=5) == ()


def test_no_count_no_finding(plain):
    plain["model"]["target_params"] = 1000
    assert judge_realism(check(plain), estimate=None) == ()


def test_an_unknown_rule_cannot_be_switched_off(plain):
    with pytest.raises(ValueError, match="no realism rule hed_dim_range"):
        check(plain, disabled=["hed_dim_range"])

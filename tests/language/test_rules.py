"""Fields against each other: what each rule lets pass. What each refuses stands in broken/, one file per breach."""

import copy
from pathlib import Path

import pytest

from eulerstack.errors import EulerStackError
from eulerstack.language import rules, schedule_rules, template_rules
from eulerstack.language.load import check

BROKEN = Path(__file__).parent / "broken"


def changed(plain, **blocks):
    """A copy with keys set: `model__n_heads=3` sets model.n_heads, `mixer`, `ffn` and such are the template's."""
    data = copy.deepcopy(plain)
    for address, value in blocks.items():
        *path, key = address.split("__")
        holder = data["layer_templates"]["block"] if address in ("mixer", "ffn", "norm", "residual", "state") else data
        for step in path:
            holder = holder.setdefault(step, {})
        holder[key] = value
    return data


def attention(**options):
    return {"type": "attention", "attention": options}


def mamba(**options):
    return {"type": "mamba", "mamba": options}


def moe(**options):
    return {"type": "moe", "moe": {"experts": 4, "top_k": 2, **options}}


INDEXER = {"arch": "relu_mha", "n_heads": 1, "d_per_head": 16}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
PASSES = {
    "head_dim frees d_model": {"model__n_heads": 3, "model__head_dim": 64},
    "one key head": {"model__n_kv_heads": 1},
    "odd heads without rope": {"model__head_dim": 63, "embedding__positional": "alibi"},
    "odd heads where nothing rotates": {"model__head_dim": 63, "mixer": mamba()},
    "a quarter rotates": {"embedding__rope_fraction": 0.25},
    "null is not given": {"embedding__positional": "none", "embedding__rope_scaling": None},
    "yarn": {"embedding__rope_scaling": YARN | {"beta_fast": 16, "truncate": False}},
    "yarn of DeepSeek": {"embedding__rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}},
    "dynamic": {"embedding__rope_scaling": {"type": "dynamic", "factor": 2}},
    "dilated": {"mixer": attention(window=64, window_mode="dilated", window_dilation=4)},
    "nsa with its own dilation": {"mixer": attention(window=64, window_mode="nsa")},
    "sliding without window": {"mixer": attention(window_mode="sliding")},
    "latent": {"mixer": attention(latent_dim=255)},
    "deepseek": {"mixer": attention(latent_dim=64, q_latent_dim=96, qk_rope_dim=16, qk_nope_dim=32, v_head_dim=32)},
    "deepseek without rope": {"mixer": attention(latent_dim=64, v_head_dim=32), "embedding__positional": "alibi"},
    "csa": {"mixer": attention(compression={"type": "csa", "m_block": 8, "indexer": INDEXER, "top_k_blocks": 4})},
    "hca": {"mixer": attention(compression={"type": "hca", "m_block": 8})},
    "nsa_learned": {"mixer": attention(compression={"type": "nsa_learned", "m_block": 8, "indexer": INDEXER})},
    "compression in a window with sinks": {
        "mixer": attention(window=16, attention_sinks={}, compression={"type": "hca", "m_block": 8}),
        "embedding__positional": "alibi",
    },
    "an odd indexer where nothing turns": {
        "mixer": attention(
            compression={"type": "csa", "m_block": 8, "indexer": INDEXER | {"d_per_head": 7}, "top_k_blocks": 4}
        ),
        "embedding__positional": "none",
    },
    "mamba1": {"mixer": mamba(variant="mamba1", dt_rank=8, inner_norm=True, conv_bias=False, bias=True)},
    "mamba2 of another width": {"mixer": mamba(head_dim=48), "layer_templates__block__shape_change": {"d_out": 96}},
    "mamba2": {"mixer": mamba(head_dim=32, n_groups=8, chunk_size=64, inner_norm=False)},
    "all experts": {"ffn": moe(top_k=4, shared_experts=2, shared_d_ff=64)},
    "hash": {"ffn": moe(routing={"type": "hash", "hash_salt": 0}, bias_correction={"enabled": False})},
    "groups": {"ffn": moe(balance={"group_limit": 4})},
    "groups of two": {"ffn": moe(balance={"groups": 2, "group_limit": 1, "sequence_aux_coef": 1e-4})},
    "layernorm bias": {"norm": {"type": "layernorm", "bias": False}},
    "unit offset": {"norm": {"unit_offset": True}},
    "hyper": {"residual": {"type": "hyper_connection", "hyper": {"expand": 1, "sinkhorn_iters": 0}}},
    "state": {"state": {"kv_cache": True}},
    "no state": {"state": {"kv_cache": False, "ssm_state": False}, "mixer": {"type": "hyena"}},
    "mixer alone": {"ffn": {"type": "none"}},
    "ffn alone": {"mixer": {"type": "none"}},
    "hf": {"tokenizer_contract": {"type": "hf", "pretrained": "gpt2"}, "model__vocab_size": 50257},
    "corpus": {"tokenizer_contract__corpus": "text.jsonl", "model__vocab_size": 259},
    "budget": {"transition": {"type": "budget_exhausted"}},
    "mtp": {"head": {"type": "causal_lm_mtp", "mtp": {"head_template": "block"}}},
}


@pytest.mark.parametrize("name", PASSES)
def test_passes(plain, name):
    check(changed(plain, **PASSES[name]))


BREAKS = {
    "beta_slow 16 is not below beta_fast 16": {"embedding__rope_scaling": YARN | {"beta_fast": 16, "beta_slow": 16}},
    "dynamic has no original_max_position_embeddings": {
        "embedding__rope_scaling": {"type": "dynamic", "factor": 2, "original_max_position_embeddings": 64}
    },
    "0.01 of a head of 64": {"embedding__rope_fraction": 0.01},
    "qk_rope_dim rotates": {
        "mixer": attention(latent_dim=64, qk_rope_dim=16),
        "embedding__positional": "none",
    },
    "the norms stand on the latents": {"mixer": attention(latent_dim=64, qk_rope_dim=16, qk_norm="rmsnorm")},
    "q_latent_dim 256 does not compress d_model 256": {"mixer": attention(latent_dim=64, q_latent_dim=256)},
    "only 2 channels turn": {
        "mixer": attention(latent_dim=64, qk_rope_dim=2),
        "embedding__rope_scaling": {"type": "dynamic", "factor": 2},
    },
    "a head has 63": {"mixer": attention(latent_dim=64, qk_rope_dim=16), "model__head_dim": 63},
    "mamba2 has no inner_norm": {"mixer": mamba(inner_norm=True)},
    "not nsa": {"mixer": attention(window=8, window_mode="nsa", compression={"type": "hca", "m_block": 8})},
    "hca is dense and has no indexer": {
        "mixer": attention(compression={"type": "hca", "m_block": 8, "indexer": INDEXER})
    },
    "nsa_learned needs indexer": {"mixer": attention(compression={"type": "nsa_learned", "m_block": 8})},
    "1 of 4 channels of the indexer would turn": {
        "mixer": attention(
            compression={"type": "csa", "m_block": 8, "indexer": INDEXER | {"d_per_head": 4}, "top_k_blocks": 4}
        ),
        "embedding__rope_fraction": 0.25,
    },
    "2 of 2 channels of the indexer would turn": {
        "mixer": attention(
            compression={"type": "csa", "m_block": 8, "indexer": INDEXER | {"d_per_head": 2}, "top_k_blocks": 4}
        ),
        "embedding__rope_scaling": {"type": "dynamic", "factor": 2},
    },
    "mamba2 has no dt_rank": {"mixer": mamba(dt_rank=8)},
    "8 heads do not split into n_groups = 3": {"mixer": mamba(n_groups=3)},
    "a head of 63 channels cannot rotate": {
        "mixer": {"type": "retnet"},
        "model__head_dim": 63,
    },
    "0.05 of a head of 64": {"mixer": {"type": "retnet"}, "embedding__rope_fraction": 0.05},
    "dynamic scaling turns old keys anew": {
        "mixer": {"type": "retnet"},
        "embedding__rope_scaling": {"type": "dynamic", "factor": 2},
    },
    "no shared expert": {"ffn": moe(shared_d_ff=64)},
    "more groups than 4 experts": {"ffn": moe(balance={"group_limit": 5})},
    "4 experts do not split into groups = 3": {"ffn": moe(balance={"groups": 3, "group_limit": 1})},
    "3 of 2 groups": {"ffn": moe(balance={"groups": 2, "group_limit": 3})},
    "1 of 4 groups hold 1 experts, and top_k is 2": {"ffn": moe(balance={"groups": 4, "group_limit": 1})},
    "no group_limit": {"ffn": moe(balance={"groups": 2})},
    "a hash chooses the experts, whatever": {
        "ffn": moe(routing={"type": "hash", "hash_salt": 0}, balance={"group_limit": 1})
    },
    "so no loss can even them": {
        "ffn": moe(routing={"type": "hash", "hash_salt": 0}, balance={"sequence_aux_coef": 0.1})
    },
    "a hash chooses the experts, so a bias cannot": {
        "ffn": moe(routing={"type": "hash", "hash_salt": 0}, bias_correction={"enabled": True})
    },
    "mixer attention keeps a kv_cache": {"state": {"kv_cache": False}},
    "hf is not trained here": {
        "tokenizer_contract": {"type": "hf", "pretrained": "gpt2", "corpus": "x"},
        "model__vocab_size": 50257,
    },
    "budget_exhausted has no token": {"transition": {"type": "budget_exhausted", "token": "x"}},
    "mixer branched keeps no ssm_state": {
        "mixer": {"type": "branched", "branched": {"branches": {"a": attention(), "b": {"type": "retnet"}}}},
        "state": {"ssm_state": True},
    },
    "learned_gate mixes all branches": {
        "mixer": {
            "type": "branched",
            "branched": {"branches": {"a": attention(), "b": mamba()}, "selector": {"top_k": 2}},
        },
    },
}


@pytest.mark.parametrize("words", BREAKS)
def test_breaks(plain, words):
    with pytest.raises(EulerStackError) as caught:
        check(changed(plain, **BREAKS[words]))
    (problem,) = caught.value.problems
    assert problem.category == "CompatibilityError"
    assert words in problem.what


def two_templates(plain, first, second):
    data = copy.deepcopy(plain)
    block = data["layer_templates"]["block"]
    data["layer_templates"] = {"one": block | first, "two": block | second}
    data["layer_schedule"] = [{"template": "one"}, {"template": "two"}]
    return data


def test_one_expand_for_all_layers(plain):
    hyper = [{"residual": {"type": "hyper_connection", "hyper": {"expand": n}}} for n in (2, 4)]
    check(two_templates(plain, hyper[0], hyper[0]))
    with pytest.raises(EulerStackError, match="expand 4 here, 2 in template 'one'"):
        check(two_templates(plain, *hyper))


def test_an_unused_template_may_have_another_residual(plain):
    data = two_templates(plain, {}, {"residual": {"type": "parallel"}})
    data["layer_schedule"].pop()
    check(data)


OVERRIDES = {
    "a norm override may not lose a bias": (
        {"norm": {"type": "layernorm", "bias": False}},
        {"norm": {"type": "rmsnorm"}},
        "the template's norm sets bias",
    ),
    "a norm override may not lose an offset": (
        {"norm": {"unit_offset": True}},
        {"norm": {"type": "layernorm"}},
        "the template's norm sets unit_offset",
    ),
    "nothing to activate": ({"ffn": {"type": "none"}}, {"ffn": {"activation": "gelu"}}, "does not know gelu"),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_override_fits_its_template(plain, name):
    block, override, words = OVERRIDES[name]
    plain["layer_templates"]["block"] |= block
    plain["layer_schedule"][0]["override"] = override
    with pytest.raises(EulerStackError, match=words):
        check(plain)


def test_overrides_that_fit(plain):
    plain["layer_schedule"] = [
        {"template": "block", "override": {"attention": {"window": None}, "norm": {"position": "post"}}},
        {"template": "block", "override": {"ffn": {"activation": "relu2"}, "residual": {"scaling": 0.5}}},
        {"template": "block", "override": {}},
    ]
    check(plain)


MERGES = {
    "cross_attn needs from": {"type": "cross_attn", "to": "a"},
    "cross_attn needs to": {"type": "cross_attn", "from": "b"},
    "a stream cannot attend to itself": {"type": "cross_attn", "from": "a", "to": "a"},
    "no stream 'z'": {"type": "cross_attn", "from": "a", "to": "z"},
    "a gated merge has no to": {"type": "gated", "to": "a"},
}


@pytest.mark.parametrize("words", MERGES)
def test_merges(plain, words):
    streams = [{"stream": name, "body": [{"template": "block"}]} for name in "ab"]
    plain["layer_schedule"] = [{"parallel": streams, "merge": MERGES[words]}]
    with pytest.raises(EulerStackError, match=words):
        check(plain)


def test_a_mixer_rule_reaches_into_branches_with_its_address(plain):
    branches = {"a": attention(), "b": mamba(dt_rank=4)}
    data = changed(plain, mixer={"type": "branched", "branched": {"branches": branches}})
    with pytest.raises(EulerStackError) as caught:
        check(data)
    (problem,) = caught.value.problems
    assert problem.where == "layer_templates.block.mixer.branched.branches.b.mamba.dt_rank"


def test_every_rule_is_listed():
    """A rule that nobody lists is never asked."""
    listed = {
        rules: rules.RULES,
        schedule_rules: (*schedule_rules.SCHEDULE_RULES, schedule_rules.references),
        template_rules: template_rules.TEMPLATE_RULES,
    }
    for module, functions in listed.items():
        public = {f for name, f in vars(module).items() if callable(f) and not name.startswith("_")}
        own = {f for f in public if f.__module__ == module.__name__}
        assert own - {rules.check_rules} == set(functions)

"""Jamba as a whole, written as a preset, against transformers' own class with the same weights."""

import pytest
from transformers import JambaConfig, JambaForCausalLM

NAMES = {
    "mamba.": "mixer.",
    "self_attn.": "mixer.",
    "dt_layernorm": "dt_norm",
    "b_layernorm": "b_norm",
    "c_layernorm": "c_norm",
    "feed_forward.": "ffn.",
    "input_layernorm": "mixer_norm",
    "pre_ff_layernorm": "ffn_norm",
    "final_layernorm": "norm",
}


@pytest.fixture
def theirs(randomise):
    """Attention in layers 1 and 4 of six, experts in every other layer."""
    shape = {"vocab_size": 271, "hidden_size": 20, "intermediate_size": 27, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_period": 3, "attn_layer_offset": 1}
    experts = {"num_experts": 5, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1}
    mamba = {"mamba_d_state": 7, "mamba_d_conv": 3, "mamba_expand": 2, "mamba_dt_rank": 3}
    model = JambaForCausalLM(JambaConfig(**shape, **heads, **experts, **mamba, pad_token_id=0))
    return randomise(model)


def test_the_whole_model(theirs, preset, layer, model_of, renamed, agree):
    ssm = {"type": "mamba", "mamba": {"variant": "mamba1", "d_state": 7, "d_conv": 3, "dt_rank": 3, "inner_norm": True}}
    moe = {"type": "moe", "moe": {"experts": 5, "top_k": 2, "normalize_top_k": False}}
    dense, sparse = {"type": "gated_mlp"}, moe
    kinds = [layer(ssm, dense), layer(ssm, sparse), layer({}, dense), layer({}, sparse)]
    order = [0, 3, 0, 1, 2, 1]
    sizes = {"d_model": 20, "d_ff": 27, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-6}
    tree = preset(*kinds, schedule=order, embedding={"positional": "none"}, **sizes)
    ours = model_of(tree, theirs, renamed(theirs.state_dict(), NAMES))
    agree(ours, theirs)

"""DeepSeek-V2 and V3, written as presets, against transformers' own classes with the same weights."""

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM

H, L, N, R, V = 3, 10, 4, 6, 5  # transformers' V2 turns views as complex numbers, which wants L and N even
NAMES = {
    "self_attn.": "mixer.",
    "mlp.gate.e_score_correction_bias": "mlp.router.correction_bias",
    "mlp.gate.": "mlp.router.",
    "mlp.shared_experts.": "mlp.shared.",
    "mlp.": "ffn.",
    "input_layernorm": "mixer_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_a_proj": "q_down",
    "q_a_layernorm": "q_down_norm",
    "q_b_proj": "q_up",
    "kv_a_proj_with_mqa": "kv_down",
    "kv_a_layernorm": "kv_norm",
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
YARN |= {"mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 32, "beta_slow": 1}


def ours_of(renamed, state: dict) -> dict:
    """transformers' names -> ours: keys apart from values, and the two of a rotating pair half of the part apart."""
    out = {}
    for name, value in renamed(state, NAMES).items():
        if "kv_b_proj" in name:
            k, v = value.unflatten(0, (H, N + V)).split((N, V), 1)
            out[name.replace("kv_b_proj", "k_up")], out[name.replace("kv_b_proj", "v_up")] = (
                k.flatten(0, 1),
                v.flatten(0, 1),
            )
        elif ".q_proj." in name or ".q_up." in name:
            still, turning = value.unflatten(0, (H, N + R)).split((N, R), 1)
            out[name] = torch.cat((still, turning[:, 0::2], turning[:, 1::2]), 1).flatten(0, 1)
        elif "kv_down" in name:
            out[name] = torch.cat((value[:L], value[L::2], value[L + 1 :: 2]))
        else:
            out[name] = value
    return out


@pytest.fixture
def deepseek(randomise):
    """`deepseek(class, class of its configuration, **changes)`: two layers, the first of them dense."""

    def made(cls, config_cls, **changes):
        sizes = {"vocab_size": 271, "hidden_size": 30, "intermediate_size": 45, "moe_intermediate_size": 13}
        sizes |= {"num_hidden_layers": 2, "first_k_dense_replace": 2, "max_position_embeddings": 64}
        heads = {"num_attention_heads": H, "num_key_value_heads": H, "kv_lora_rank": L, "q_lora_rank": 8}
        parts = {"qk_nope_head_dim": N, "qk_rope_head_dim": R, "v_head_dim": V, "pad_token_id": 0}
        return randomise(cls(config_cls(**sizes | heads | parts | changes)))

    return made


@pytest.fixture
def ours_like(preset, layer, model_of, renamed):
    """`ours_like(theirs, ffn of the last layer, **options of attention)`."""

    def made(theirs, ffn=None, *, rope_scaling=None, **options):
        own = {"latent_dim": L, "qk_nope_dim": N, "qk_rope_dim": R, "v_head_dim": V} | options
        sizes = {"d_model": 30, "d_ff": 45, "n_heads": H, "norm_eps": 1e-6}
        stretched = {} if rope_scaling is None else {"rope_scaling": rope_scaling}
        tree = preset(layer(own), layer(own, ffn), embedding=stretched, **sizes)
        return model_of(tree, theirs, ours_of(renamed, theirs.state_dict()))

    return made


BOTH = pytest.mark.parametrize(
    ("cls", "config_cls"),
    [(DeepseekV2ForCausalLM, DeepseekV2Config), (DeepseekV3ForCausalLM, DeepseekV3Config)],
    ids=["v2", "v3"],
)


@BOTH
@pytest.mark.parametrize("q_latent_dim", [None, 8])
def test_latent_attention(deepseek, ours_like, agree, cls, config_cls, q_latent_dim):
    theirs = deepseek(cls, config_cls, q_lora_rank=q_latent_dim)
    agree(ours_like(theirs, q_latent_dim=q_latent_dim), theirs)


@BOTH
def test_biases_and_a_stretched_rope_whose_temperature_reaches_the_whole_head(
    deepseek, ours_like, agree, cls, config_cls
):
    theirs = deepseek(cls, config_cls, rope_parameters=YARN, attention_bias=True)
    fields = {key: YARN[key] for key in ("factor", "original_max_position_embeddings", "mscale", "mscale_all_dim")}
    scaling = {"type": "yarn"} | fields
    biases = {"qkv_bias": True, "o_bias": True, "q_latent_dim": 8}
    agree(ours_like(theirs, rope_scaling=scaling, **biases), theirs)
    flat = ours_like(theirs, rope_scaling=scaling | {"mscale": 0.8, "mscale_all_dim": 1.4}, **biases)
    with pytest.raises(AssertionError):
        agree(flat, theirs)


def experts(**options) -> dict:
    return {"type": "moe", "moe": {"experts": 6, "top_k": 3, "d_ff": 13, "shared_experts": 2, **options}}


SPARSE = {"first_k_dense_replace": 1, "n_routed_experts": 6, "num_experts_per_tok": 3, "n_shared_experts": 2}
SPARSE |= {"routed_scaling_factor": 1.7}
V2_GROUPS = {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2}
GROUPS = {"groups": 3, "group_limit": 2}


@pytest.mark.parametrize(("theirs", "balance"), [({"topk_method": "greedy"}, {}), (V2_GROUPS, GROUPS)])
def test_v2_with_experts(deepseek, ours_like, agree, theirs, balance):
    theirs = deepseek(DeepseekV2ForCausalLM, DeepseekV2Config, **SPARSE, **theirs)
    ffn = experts(normalize_top_k=False, routed_scale=1.7, balance=balance)
    agree(ours_like(theirs, ffn, q_latent_dim=8), theirs)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("groups", "limit"), [(1, 1), (3, 2)])
def test_v3_with_experts(deepseek, ours_like, agree, groups, limit, normalize):
    counts = {"n_group": groups, "topk_group": limit, "norm_topk_prob": normalize}
    theirs = deepseek(DeepseekV3ForCausalLM, DeepseekV3Config, **SPARSE, **counts)
    bias = theirs.model.layers[1].mlp.gate.e_score_correction_bias
    bias.copy_(torch.randn(6, generator=torch.Generator().manual_seed(4)) * 0.2)
    options = {"router": "sigmoid", "normalize_top_k": normalize, "routed_scale": 1.7}
    options |= {"bias_correction": {"enabled": True}}
    options |= {} if groups == 1 else {"balance": {"groups": groups, "group_limit": limit}}
    agree(ours_like(theirs, experts(**options), q_latent_dim=8), theirs)

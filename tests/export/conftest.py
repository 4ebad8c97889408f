"""A small model and tokenizer to export: attention layers, one of them with experts and a correction bias."""

import json

import pytest

from eulerstack.export.tokenizer import Tokenizer

ATTENTION = {
    "type": "attention",
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 10,
    "qkv_bias": True,
    "o_bias": False,
    "attn_drop": 0.0,
    "window": None,
    "window_mode": "standard",
    "window_dilation": 1,
    "qk_norm": "rmsnorm",
    "logit_softcap": None,
    "scale": 10**-0.5,
    "attention_sinks": None,
}
MOE = {
    "type": "moe",
    "activation": "swiglu",
    "bias": False,
    "d_ff": 24,
    "experts": 3,
    "top_k": 2,
    "affinity": "sigmoid",
    "normalize_top_k": True,
    "routed_scale": 1.0,
    "shared_experts": 1,
    "shared_d_ff": 16,
    "z_loss": 0.0,
    "load_balance_coef": 0.0,
    "capacity_factor": 1.25,
    "capacity_drop_policy": "overflow",
    "router_bias": True,
    "router_init_std": None,
    "router_jitter": 0.0,
    "bias_correction": {"enabled": True, "update_rate": 0.001, "target_imbalance": 0.0},
    "routing": {"type": "learned", "hash_salt": None},
    "balance": {"sequence_aux_coef": 0.0, "groups": None, "group_limit": None},
}
NORM = {"type": "rmsnorm", "position": "pre", "unit_offset": False, "bias": True}
REST = {"norm": NORM, "residual": {"type": "sequential", "scaling": 1.0}}
PAYLOAD = {
    "architectures": ["EulerStackForCausalLM"],
    "model_type": "eulerstack",
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
    "vocab_size": 300,
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 60,
    "max_position_embeddings": 64,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": True,
    "use_cache": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
    "layer_types": ["full_attention"] * 3,
    "positional": "rope",
    "embedding_scale": None,
    "blocks": {
        "dense": {"mixer": ATTENTION, "ffn": {"type": "gated_mlp", "d_ff": 60, "activation": "swiglu", "bias": True}}
        | REST,
        "sparse": {"mixer": ATTENTION, "ffn": MOE} | REST,
    },
    "block_pattern": ["dense", "sparse", "dense"],
    "final_norm": {"type": "rmsnorm", "unit_offset": False, "bias": True},
    "head_type": "causal_lm",
    "head_bias": False,
    "final_logit_softcapping": None,
    "dropout": 0.0,
    "init": {"scheme": "normal", "std": 0.02},
    "dtype_policy": "uniform",
    "router_aux_loss_coef": 0.01,
    "output_router_logits": False,
    "training_hints": {},
    "execution_modes": [],
    "transition": None,
}


@pytest.fixture
def payload():
    """`payload(**changes)`: the payload of config.json, changed at the top level."""
    return lambda **changes: json.loads(json.dumps(PAYLOAD | changes))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Every byte a token, and two marks; a stand-in."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    marks = ["<bos>", "<eos>"]
    vocabulary = {token: i for i, token in enumerate([*marks, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens(marks)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": marks[0], "eos_token": marks[1]}
    files = {"tokenizer.json": backend.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()}
    return Tokenizer(
        files,
        stand_in=True,
        source="a stand-in for x/y: every byte a token",
        size=len(vocabulary),
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
    )

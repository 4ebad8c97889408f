"""Decoders of dense attention layers, written as presets, against transformers' own classes with the same weights."""

import math

import pytest
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HEADS = {"head_dim": 6, "n_heads": 5, "n_kv_heads": 1}
SIZES = {"d_model": 30, "d_ff": 45, "norm_eps": 1e-6} | HEADS
LLAMA = {
    "self_attn.": "mixer.",
    "mlp.": "ffn.",
    "input_layernorm": "mixer_norm",
    "post_attention_layernorm": "ffn_norm",
}


@pytest.fixture
def like_llama(randomise):
    """`like_llama(class, class of its configuration, **changes)`: three layers of odd sizes."""

    def made(cls, config_cls, **changes):
        shape = {"vocab_size": 271, "hidden_size": 30, "intermediate_size": 45, "num_hidden_layers": 3}
        heads = {"num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64}
        options = {"head_dim": 6, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "pad_token_id": 0}
        return randomise(cls(config_cls(**shape | heads | options | changes)))

    return made


def test_llama(like_llama, preset, layer, model_of, renamed, agree):
    theirs = like_llama(LlamaForCausalLM, LlamaConfig)
    ours = model_of(preset(layer(), schedule=[0] * 3, **SIZES), theirs, renamed(theirs.state_dict(), LLAMA))
    agree(ours, theirs)


def test_mistral_with_a_window_shorter_than_the_text(like_llama, preset, layer, model_of, renamed, agree):
    theirs = like_llama(MistralForCausalLM, MistralConfig, sliding_window=9)
    state = renamed(theirs.state_dict(), LLAMA)
    agree(model_of(preset(layer({"window": 9}), schedule=[0] * 3, **SIZES), theirs, state), theirs)
    without = model_of(preset(layer(), schedule=[0] * 3, **SIZES), theirs, state)
    with pytest.raises(AssertionError):
        agree(without, theirs)


def test_qwen2(like_llama, preset, layer, model_of, renamed, agree):
    theirs = like_llama(Qwen2ForCausalLM, Qwen2Config)
    tree = preset(layer({"qkv_bias": True}), schedule=[0] * 3, **SIZES)
    agree(model_of(tree, theirs, renamed(theirs.state_dict(), LLAMA)), theirs)


def test_qwen3(like_llama, preset, layer, model_of, renamed, agree):
    theirs = like_llama(Qwen3ForCausalLM, Qwen3Config)
    tree = preset(layer({"qk_norm": "rmsnorm"}), schedule=[0] * 3, **SIZES)
    agree(model_of(tree, theirs, renamed(theirs.state_dict(), LLAMA)), theirs)


def test_gemma2_with_both_caps_and_a_window_in_every_other_layer(
    like_llama, preset, layer, model_of, renamed, agree, randomise
):
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 11}
    window = {"sliding_window": 9, "tie_word_embeddings": True, "attn_implementation": "eager"}
    theirs = like_llama(Gemma2ForCausalLM, Gemma2Config, **caps, **window)
    own = {"logit_softcap": 2.0, "scale": 11**-0.5}
    norm = {"type": "rmsnorm", "position": "sandwich", "unit_offset": True}
    mlp = {"type": "gated_mlp", "activation": "gelu_tanh"}
    near, far = (layer(own | reach, mlp, norm=norm) for reach in ({"window": 9}, {}))
    head = {"tie_weights": True, "logit_softcap": 3.0}
    embedding = {"scale": math.sqrt(30)}
    tree = preset(near, far, schedule=[0, 1, 0], head=head, embedding=embedding, **SIZES)
    names = LLAMA | {"post_attention_layernorm": "mixer_post_norm"}
    names |= {"pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "ffn_post_norm"}
    agree(model_of(tree, theirs, renamed(theirs.state_dict(), names)), theirs)


def test_olmo2(like_llama, preset, layer, model_of, renamed, agree):
    theirs = like_llama(Olmo2ForCausalLM, Olmo2Config)
    block = layer({"qk_norm": "rmsnorm_full"}, norm={"type": "rmsnorm", "position": "post_branch"})
    names = LLAMA | {"post_attention_layernorm": "mixer_norm", "post_feedforward_layernorm": "ffn_norm"}
    tree = preset(block, schedule=[0] * 3, **SIZES)
    agree(model_of(tree, theirs, renamed(theirs.state_dict(), names)), theirs)

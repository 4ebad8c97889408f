"""Decoders of attention layers against transformers' own classes with the same weights, in float32."""

import math

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

LAYER_NORM = {"type": "layernorm", "unit_offset": False, "bias": True}


def agrees(ours, theirs, vocab):
    ids = torch.randint(0, vocab, (3, 41), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        a, b = ours(ids, use_cache=False).logits, theirs(ids, use_cache=False).logits
    assert (a - b).abs().max() < 1e-4 * b.std()


def llama_names(state):
    """transformers' names of a Llama-like layer -> ours."""
    pairs = {
        "self_attn.": "mixer.",
        "mlp.": "ffn.",
        "input_layernorm": "mixer_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for theirs, ours in pairs.items():
        state = {name.replace(theirs, ours): value for name, value in state.items()}
    return state


def randomise(model):
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.15 + (1.0 if p.dim() == 1 else 0.0))
    return model.eval()


def llama_like(cls, config_cls, **changes):
    shape = {"vocab_size": 71, "hidden_size": 30, "intermediate_size": 45, "num_hidden_layers": 3, "head_dim": 6}
    heads = {"num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    return randomise(cls(config_cls(**shape, **heads, tie_word_embeddings=False, **changes)))


def ours_like_llama(build, payload, block, **options):
    shape = {"n_heads": 5, "n_kv_heads": 1, "head_dim": 6, "scale": 6**-0.5, "qkv_bias": False}
    layer = block(ffn_options={"d_ff": 45}, **shape | options)
    return build(payload(layer, layer, layer, vocab_size=71, hidden_size=30, tie_word_embeddings=False))


def test_same_logits_as_llama(build, payload, block):
    theirs = llama_like(LlamaForCausalLM, LlamaConfig)
    ours = ours_like_llama(build, payload, block)
    ours.load_state_dict(llama_names(theirs.state_dict()))
    agrees(ours, theirs, 71)


def test_same_logits_as_mistral_with_a_window_shorter_than_the_text(build, payload, block):
    theirs = llama_like(MistralForCausalLM, MistralConfig, sliding_window=9)
    ours = ours_like_llama(build, payload, block, window=9)
    ours.load_state_dict(llama_names(theirs.state_dict()))
    agrees(ours, theirs, 71)
    without = ours_like_llama(build, payload, block)
    without.load_state_dict(ours.state_dict())
    with pytest.raises(AssertionError):
        agrees(without, theirs, 71)


def gpt2_names(state):
    """GPT-2's names, its Conv1D matrices turned, its joint projection split -> ours."""
    renames = {"transformer.wte": "model.embed_tokens", "transformer.wpe": "model.embed_positions"}
    renames |= {
        "transformer.ln_f": "model.norm",
        "transformer.h": "model.layers",
        "ln_1": "mixer_norm",
        "ln_2": "ffn_norm",
    }
    renames |= {"attn.c_proj": "mixer.o_proj", "mlp.c_fc": "ffn.up_proj", "mlp.c_proj": "ffn.down_proj"}
    turned = {n: v.T if n.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else v for n, v in state.items()}
    for theirs, ours in renames.items():
        turned = {name.replace(theirs, ours): value for name, value in turned.items()}
    out = {}
    for name, value in turned.items():
        if "attn.c_attn" in name:
            for letter, piece in zip("qkv", value.chunk(3), strict=True):
                out[name.replace("attn.c_attn", f"mixer.{letter}_proj")] = piece
        else:
            out[name] = value
    return out


def test_same_logits_as_gpt2(build, payload, block):
    shape = {"vocab_size": 71, "n_embd": 33, "n_layer": 2, "n_head": 3, "n_inner": 50, "n_positions": 48}
    theirs = randomise(GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=1)))
    heads = {"n_heads": 3, "n_kv_heads": 3, "head_dim": 11, "scale": 1 / math.sqrt(11), "o_bias": True}
    wide = {"d_ff": 50, "activation": "gelu_tanh"}
    layer = block("attention", "mlp", norm={"type": "layernorm"}, ffn_options=wide, **heads)
    ours = build(
        payload(
            layer,
            layer,
            vocab_size=71,
            hidden_size=33,
            max_position_embeddings=48,
            positional="learned",
            rope_parameters=None,
            final_norm=LAYER_NORM,
        )
    )
    ours.load_state_dict(gpt2_names(theirs.state_dict()))
    agrees(ours, theirs, 71)

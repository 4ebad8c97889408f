"""Published models, written as presets, have the parameters of transformers' own classes, to the last one."""

import pytest
import torch

from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir

NONE = {"type": "none"}
UNTIED = {"tie_weights": False}


def llama(preset, template):
    sizes = {"d_model": 2048, "d_ff": 8192, "vocab_size": 128256, "n_heads": 32, "n_kv_heads": 8}
    return preset(template(), schedule=[{"template": "t0", "repeat": 16}], **sizes)


def gpt2(preset, template):
    block = template({"qkv_bias": True, "o_bias": True}, {"type": "mlp", "bias": True}, norm={"type": "layernorm"})
    sizes = {"d_model": 768, "vocab_size": 50257, "n_heads": 12, "max_seq_len": 1024}
    return preset(block, schedule=[{"template": "t0", "repeat": 12}], embedding={"positional": "learned"}, **sizes)


def mistral(preset, template):
    sizes = {"d_model": 4096, "d_ff": 14336, "vocab_size": 32000, "n_heads": 32, "n_kv_heads": 8, "max_seq_len": 8192}
    schedule = [{"template": "t0", "repeat": 32}]
    return preset(template({"window": 4096}), schedule=schedule, head=UNTIED, **sizes)


def mixtral(preset, template):
    sizes = {"d_model": 4096, "d_ff": 14336, "vocab_size": 32000, "n_heads": 32, "n_kv_heads": 8}
    block = template({}, {"type": "moe", "moe": {"experts": 8, "top_k": 2}})
    return preset(block, schedule=[{"template": "t0", "repeat": 32}], head=UNTIED, **sizes)


def mamba(preset, template):
    block = template({"type": "mamba", "mamba": {"variant": "mamba1", "d_state": 16}}, NONE)
    sizes = {"d_model": 768, "vocab_size": 50280, "n_heads": 12}
    return preset(block, schedule=[{"template": "t0", "repeat": 24}], embedding={"positional": "none"}, **sizes)


def mamba2(preset, template):
    block = template({"type": "mamba", "mamba": {"d_state": 128}}, NONE)
    sizes = {"d_model": 768, "vocab_size": 50288, "n_heads": 12}
    return preset(block, schedule=[{"template": "t0", "repeat": 24}], embedding={"positional": "none"}, **sizes)


def qwen2(preset, template):
    sizes = {"d_model": 896, "d_ff": 4864, "vocab_size": 151936, "n_heads": 14, "n_kv_heads": 2}
    return preset(template({"qkv_bias": True}), schedule=[{"template": "t0", "repeat": 24}], **sizes)


def qwen3(preset, template):
    sizes = {"d_model": 1024, "d_ff": 3072, "vocab_size": 151936, "n_heads": 16, "n_kv_heads": 8, "head_dim": 128}
    return preset(template({"qk_norm": "rmsnorm"}), schedule=[{"template": "t0", "repeat": 28}], **sizes)


def olmo2(preset, template):
    sizes = {"d_model": 2048, "d_ff": 8192, "vocab_size": 100352, "n_heads": 16}
    block = template({"qk_norm": "rmsnorm_full"}, norm={"position": "post_branch"})
    return preset(block, schedule=[{"template": "t0", "repeat": 16}], head=UNTIED, **sizes)


def gemma2(preset, template):
    norm = {"position": "sandwich", "unit_offset": True}
    ffn = {"type": "gated_mlp", "activation": "gelu_tanh"}
    blocks = [template({"window": 4096}, ffn, norm=norm), template({}, ffn, norm=norm)]
    sizes = {"d_model": 2304, "d_ff": 9216, "vocab_size": 256000, "n_heads": 8, "n_kv_heads": 4, "head_dim": 256}
    schedule = [{"template": f"t{i % 2}"} for i in range(26)]
    return preset(*blocks, schedule=schedule, max_seq_len=8192, **sizes)


def jamba(preset, template):
    mixer = {"type": "mamba", "mamba": {"variant": "mamba1", "d_state": 16, "inner_norm": True}}
    moe = {"type": "moe", "moe": {"experts": 16, "top_k": 2, "normalize_top_k": False}}
    blocks = [template(mixer), template(mixer, moe), template()]
    order = [0, 1, 0, 1, 2, 1, 0, 1] * 4
    sizes = {"d_model": 4096, "d_ff": 14336, "vocab_size": 65536, "n_heads": 32, "n_kv_heads": 8}
    schedule = [{"template": f"t{i}"} for i in order]
    return preset(*blocks, schedule=schedule, embedding={"positional": "none"}, head=UNTIED, **sizes)


PUBLISHED = {
    llama: ("Llama", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128256}
            | {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True}, 1_235_814_400),
    gpt2: ("GPT2", {}, 124_439_808),
    mistral: ("Mistral", {}, 7_241_732_096),
    mixtral: ("Mixtral", {}, 46_702_792_704),
    mamba: ("Mamba", {"hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280}, 129_135_360),
    mamba2: ("Mamba2", {"hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50288, "num_heads": 24}
             | {"n_groups": 1, "tie_word_embeddings": True}, 128_989_632),
    qwen2: ("Qwen2", {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
            | {"num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True}, 494_032_768),
    qwen3: ("Qwen3", {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128}
            | {"num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True}, 596_049_920),
    olmo2: ("Olmo2", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 100352}
            | {"num_attention_heads": 16, "num_key_value_heads": 16, "tie_word_embeddings": False}, 1_484_916_736),
    gemma2: ("Gemma2", {}, 2_614_341_888),
    jamba: ("Jamba", {}, 51_570_323_328),
}  # fmt: skip


@pytest.mark.parametrize("write", PUBLISHED, ids=lambda write: write.__name__)
def test_parameters(write, preset, template):
    import transformers

    family, sizes, published = PUBLISHED[write]
    with torch.device("meta"):
        config = getattr(transformers, f"{family}Config")(**sizes)
        model = getattr(transformers, f"{family}ForCausalLM" if family != "GPT2" else "GPT2LMHeadModel")(config)
    model.tie_weights()
    counted = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
    assert costs(normalize_to_ir(write(preset, template))).total == counted == published


def test_mixtral_uses_thirteen_billion_a_token(preset, template):
    assert costs(normalize_to_ir(mixtral(preset, template))).active == 12_879_925_248

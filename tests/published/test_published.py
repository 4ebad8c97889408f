"""Published models, written as presets, have the parameters of transformers' own classes, to the last one.

Each `*.yml` here says what one model is; CONFIGS says the same in transformers' words, with the
sizes of the published `config.json`.
"""

from pathlib import Path

import pytest
import torch

from eulerstack.compiler.judge import judge
from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.build import build_on_meta

HERE = Path(__file__).parent
TIED, UNTIED = ({"tie_word_embeddings": tied} for tied in (True, False))


def sizes(d_model: int, layers: int, vocab_size: int, **rest) -> dict:
    return {"hidden_size": d_model, "num_hidden_layers": layers, "vocab_size": vocab_size} | rest


def transformer(heads: int, kv_heads: int, d_ff: int, *of_sizes: int, **rest) -> dict:
    known = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": d_ff}
    return sizes(*of_sizes, **known, **rest)


LATENT = {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
LATENT |= {"v_head_dim": 128, "first_k_dense_replace": 1, "moe_intermediate_size": 1408, "n_routed_experts": 64}
LATENT |= {"n_shared_experts": 2, "num_experts_per_tok": 6}
HYBRID = {"attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1}
HYBRID |= {"num_experts": 16, "num_experts_per_tok": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
HYBRID |= {"mamba_dt_rank": 256, "mamba_conv_bias": True, "mamba_proj_bias": False, "use_mamba_kernels": False}
MAMBA = {"expand": 2, "conv_kernel": 4, "use_conv_bias": True, "use_bias": False} | TIED

CONFIGS = {
    "llama_3p2_1b": ("Llama", transformer(32, 8, 8192, 2048, 16, 128256, **TIED)),
    "mistral_7b": ("Mistral", transformer(32, 8, 14336, 4096, 32, 32000, **UNTIED)),
    "mixtral_8x7b": ("Mixtral", transformer(32, 8, 14336, 4096, 32, 32000, num_local_experts=8, **UNTIED)),
    "gemma_2_2b": ("Gemma2", transformer(8, 4, 9216, 2304, 26, 256000, head_dim=256, **TIED)),
    "qwen_2p5_0p5b": ("Qwen2", transformer(14, 2, 4864, 896, 24, 151936, **TIED)),
    "qwen_3_0p6b": ("Qwen3", transformer(16, 8, 3072, 1024, 28, 151936, head_dim=128, **TIED)),
    "olmo_2_1b": ("Olmo2", transformer(16, 16, 8192, 2048, 16, 100352, **UNTIED)),
    "deepseek_v2_lite": ("DeepseekV2", transformer(16, 16, 10944, 2048, 27, 102400, **LATENT, **UNTIED)),
    "mamba_130m": ("Mamba", sizes(768, 24, 50280, state_size=16, time_step_rank=48, **MAMBA)),
    "mamba2_130m": ("Mamba2", sizes(768, 24, 50288, state_size=128, num_heads=24, head_dim=64, n_groups=1, **MAMBA)),
    "jamba_v0p1": ("Jamba", transformer(32, 8, 14336, 4096, 32, 65536, **HYBRID, **UNTIED)),
    "gpt2_small": ("GPT2", {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}),
}
# The numbers that are known of these models; a tied weight counts once.
KNOWN = {
    "llama_3p2_1b": 1_235_814_400,
    "mistral_7b": 7_241_732_096,
    "mixtral_8x7b": 46_702_792_704,
    "gemma_2_2b": 2_614_341_888,
    "qwen_2p5_0p5b": 494_032_768,
    "qwen_3_0p6b": 596_049_920,
    "olmo_2_1b": 1_484_916_736,
    "deepseek_v2_lite": 15_706_484_224,
    "mamba_130m": 129_135_360,
    "mamba2_130m": 128_989_632,
    "jamba_v0p1": 51_570_323_328,
    "gpt2_small": 124_439_808,
}
# DeepSeek stretches its positions forty times, to more context than is usual at that width.
WARNED = {"deepseek_v2_lite": ["model.max_seq_len", "embedding.rope_scaling.factor"]}
each = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture
def judged(name):
    return judge(HERE / f"{name}.yml")


def counted(model) -> int:
    """Parameters of a model; a tied weight counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_preset_here_is_asked():
    assert {path.stem for path in HERE.glob("*.yml")} == CONFIGS.keys() == KNOWN.keys()


@each
def test_the_preset_is_sound(name, judged):
    assert judged.ir.name == name
    assert judged.unbuilt == ()
    assert [warning.where for warning in judged.warnings] == WARNED.get(name, [])


@each
def test_its_parameters_are_those_published(name, judged):
    assert judged.costs.total == KNOWN[name]


@each
def test_the_model_that_is_built_has_as_many(name, judged):
    assert counted(build_on_meta(runtime_config(judged.ir))) == KNOWN[name]


@each
def test_the_class_of_transformers_has_as_many(name):
    import transformers

    family, config = CONFIGS[name]
    kind = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    with torch.device("meta"):
        model = getattr(transformers, family + kind)(getattr(transformers, f"{family}Config")(**config))
    model.tie_weights()
    assert counted(model) == KNOWN[name]


@pytest.mark.parametrize(("name", "active"), [("mixtral_8x7b", 12_879_925_248)])
def test_a_token_uses_as_many_as_are_said_to_be_active(judged, active):
    assert judged.costs.active == active

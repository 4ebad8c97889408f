"""What benchmarks/mixers.py times: our layers, and the configuration of transformers' class for the same work."""

from collections.abc import Callable
from dataclasses import dataclass

from transformers import (
    DeepseekV3Config,
    JambaConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
)


@dataclass(frozen=True)
class Size:
    batch: int
    length: int
    d: int
    heads: int
    d_ff: int
    expert_ff: int
    vocab: int = 512

    @property
    def head_dim(self) -> int:
        return self.d // self.heads


SIZES = {"full": Size(2, 1024, 512, 8, 1408, 704), "small": Size(2, 48, 32, 4, 88, 40)}


@dataclass(frozen=True)
class Case:
    """`ours` are the layer templates, one layer each; `theirs` makes a configuration; `aims` bound the three ratios."""

    ours: Callable[[Size], list[dict]]
    theirs: Callable[[Size], object]
    aims: tuple[float | None, float | None, float | None] = (1.0, 1.0, 1.0)


def template(mixer: dict, ffn: dict | None = None) -> dict:
    return {"mixer": mixer, "ffn": ffn or {"type": "gated_mlp"}}


def attention(**options) -> dict:
    return {"type": "attention", "attention": options}


def mamba(variant: str, **options) -> dict:
    return {"type": "mamba", "mamba": {"variant": variant, **options}}


def moe(size: Size, **options) -> dict:
    return {"type": "moe", "moe": {"experts": 8, "top_k": 2, "d_ff": size.expert_ff, **options}}


def shared(size: Size) -> dict:
    """What the configurations of attention models have in common."""
    sizes = {"vocab_size": size.vocab, "hidden_size": size.d, "num_hidden_layers": 2, "intermediate_size": size.d_ff}
    heads = {"num_attention_heads": size.heads, "num_key_value_heads": size.heads // 2}
    return sizes | heads | {"tie_word_embeddings": True, "pad_token_id": None}


def llama(size: Size) -> LlamaConfig:
    return LlamaConfig(**shared(size))


def mistral(size: Size) -> MistralConfig:
    return MistralConfig(**shared(size), sliding_window=size.length // 4)


def mixtral(size: Size) -> MixtralConfig:
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "output_router_logits": True}
    return MixtralConfig(**shared(size) | {"intermediate_size": size.expert_ff}, **experts)


def deepseek(size: Size) -> DeepseekV3Config:
    n = size.head_dim
    latent = {"kv_lora_rank": size.d // 4, "q_lora_rank": size.d // 2, "qk_nope_head_dim": n, "v_head_dim": n}
    latent |= {"qk_rope_head_dim": n // 2, "num_key_value_heads": size.heads, "num_mtp_layers": 0}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": size.expert_ff}
    experts |= {"n_group": 4, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 1}
    return DeepseekV3Config(**shared(size) | latent | experts)


def deepseek_layers(size: Size) -> list[dict]:
    n = size.head_dim
    latent = {"latent_dim": size.d // 4, "q_latent_dim": size.d // 2, "qk_rope_dim": n // 2}
    mixer = attention(**latent, qk_nope_dim=n, v_head_dim=n)
    experts = {"affinity": "sigmoid", "routed_scale": 2.5, "shared_experts": 1, "bias_correction": {"enabled": True}}
    grouped = moe(size, **experts, load_balance_coef=0.0, balance={"groups": 4, "group_limit": 2})
    return [template(mixer), template(mixer, grouped)]


def mamba1(size: Size) -> MambaConfig:
    sizes = {"vocab_size": size.vocab, "hidden_size": size.d, "num_hidden_layers": 2, "state_size": 16}
    return MambaConfig(**sizes, pad_token_id=None)


def mamba2(size: Size) -> Mamba2Config:
    sizes = {"vocab_size": size.vocab, "hidden_size": size.d, "num_hidden_layers": 2, "state_size": 64, "n_groups": 1}
    heads = {"head_dim": size.head_dim, "num_heads": 2 * size.heads, "chunk_size": 256}
    return Mamba2Config(**sizes, **heads, tie_word_embeddings=True, pad_token_id=None)


def jamba(size: Size) -> JambaConfig:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1}
    layers = {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "output_router_logits": True}
    return JambaConfig(**shared(size) | layers, **experts, use_mamba_kernels=False)


def jamba_layers(size: Size) -> list[dict]:
    recurrent, experts = mamba("mamba1", d_state=16, inner_norm=True), moe(size, d_ff=size.d_ff, normalize_top_k=False)
    return [template(recurrent), template(recurrent, experts), template(attention()), template(recurrent, experts)]


def alone(*templates: dict) -> Case:
    """A case without a peer: two layers, beside Llama."""
    return Case(lambda size: list(templates) * (2 // len(templates)), llama, (None, None, None))


INDEXER = {"arch": "relu_mha", "n_heads": 2, "d_per_head": 16}
COMPRESSED = {"type": "csa", "m_block": 8, "indexer": INDEXER, "top_k_blocks": 4}
BRANCHES = {"branches": {"near": attention(window=32), "far": {"type": "retnet"}}}
NONE = {"type": "none"}

CASES = {
    "attention": Case(lambda size: [template(attention())] * 2, llama),
    "window": Case(lambda size: [template(attention(window=size.length // 4))] * 2, mistral),
    "moe": Case(lambda size: [template(attention(), moe(size))] * 2, mixtral),
    "deepseek": Case(deepseek_layers, deepseek),
    "mamba1": Case(lambda size: [template(mamba("mamba1", d_state=16), NONE)] * 2, mamba1, (0.2, 0.2, 1.0)),
    "mamba2": Case(lambda size: [template(mamba("mamba2", d_state=64, head_dim=size.head_dim), NONE)] * 2, mamba2),
    "jamba": Case(jamba_layers, jamba, (0.2, 0.2, 1.0)),
    "latent": alone(template(attention(latent_dim=16))),
    "compressed": alone(template(attention(compression=COMPRESSED))),
    "retnet": alone(template({"type": "retnet"})),
    "hyena": alone(template({"type": "hyena"})),
    "ttt_layer": alone(template({"type": "ttt_layer"})),
    "branched": alone(template({"type": "branched", "branched": BRANCHES})),
    "mlp": alone(template(attention(), {"type": "mlp"})),
}

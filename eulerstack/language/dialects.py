"""What the field calls the keys and words of the language elsewhere, so that an error can name ours.

No synonym is accepted: a preset has one spelling for each thing. Addresses are those of `places.py`.
"""

import re
from functools import cache, lru_cache

TEMPLATE = "layer_templates.<name>."
# Our key: its names in transformers and fla, Mamba, zoology and OLMo-core, torchtitan and lingua, nanochat and litgpt.
KEYS = {
    "model.d_model": "hidden_size dim n_embd d_embed embed_dim embedding_size model_dim",
    "model.vocab_size": "n_vocab padded_vocab_size",
    "model.max_seq_len": "max_position_embeddings context_length block_size seq_len sequence_len sequence_length"
    " max_seq_length max_sequence_length n_positions n_ctx",
    "model.n_heads": "num_attention_heads n_head num_heads",
    "model.n_kv_heads": "num_key_value_heads num_kv_heads n_kv_head n_query_groups num_query_groups",
    "model.head_dim": "head_size dim_head d_head",
    "model.d_ff": "intermediate_size hidden_dim ffn_dim n_inner ffn_hidden_size dim_feedforward mlp_hidden_size",
    "model.mlp_ratio": "expansion_ratio",
    "model.norm_eps": "rms_norm_eps layer_norm_epsilon layer_norm_eps layernorm_epsilon norm_epsilon eps epsilon",
    "model.dtype": "torch_dtype params_dtype",
    "tokenizer_contract.pretrained": "tokenizer tokenizer_name tokenizer_name_or_path pretrained_model_name_or_path",
    "embedding.positional": "position_embedding_type positional_encoding position_embedding pos_emb",
    "embedding.rope_theta": "rope_base theta rotary_base rotary_emb_base",
    "embedding.rope_fraction": "partial_rotary_factor rotary_pct rotary_percent rotary_percentage",
    "embedding.rope_scaling.type": "rope_type",
    "embedding.scale": "embedding_multiplier embed_scale scale_emb",
    "head.tie_weights": "tie_word_embeddings tie_embeddings weight_tying",
    "head.logit_softcap": "final_logit_softcapping final_logit_softcap",
    "head.bias": "lm_head_bias",
    "head.mtp.n_predict": "num_nextn_predict_layers",
    "layer_schedule[].repeat": "count times n_layers num_layers n_layer",
    "layer_schedule[].parallel[].body[].repeat": "count times n_layers num_layers n_layer",
    TEMPLATE + "mixer": "attn self_attn token_mixer sequence_mixer",
    TEMPLATE + "ffn": "feed_forward channel_mixer",
    TEMPLATE + "norm.type": "norm_type normalization",
    TEMPLATE + "residual.scaling": "residual_multiplier residual_scale",
    TEMPLATE + "mixer.attention": "attn self_attn",
    TEMPLATE + "mixer.attention.window": "sliding_window window_size sliding_window_size local_window attention_window",
    TEMPLATE + "mixer.attention.latent_dim": "kv_lora_rank",
    TEMPLATE + "mixer.attention.q_latent_dim": "q_lora_rank",
    TEMPLATE + "mixer.attention.qk_rope_dim": "qk_rope_head_dim",
    TEMPLATE + "mixer.attention.qk_nope_dim": "qk_nope_head_dim",
    TEMPLATE + "mixer.attention.qkv_bias": "attention_bias attn_bias use_qkv_bias add_qkv_bias bias",
    TEMPLATE + "mixer.attention.o_bias": "attention_bias attn_bias bias",
    TEMPLATE + "mixer.attention.attn_drop": "attention_dropout attn_dropout attn_pdrop",
    TEMPLATE + "mixer.attention.qk_norm": "use_qk_norm qk_layernorm",
    TEMPLATE + "mixer.attention.logit_softcap": "attn_logit_softcapping attn_logit_softcap",
    TEMPLATE + "mixer.attention.scale": "attention_multiplier softmax_scale sm_scale",
    TEMPLATE + "mixer.attention.attention_sinks": "sinks attn_sinks",
    TEMPLATE + "mixer.mamba.d_state": "state_size ssm_state_size state_dim mamba_d_state",
    TEMPLATE + "mixer.mamba.d_conv": "conv_kernel conv_size conv_kernel_size mamba_d_conv",
    TEMPLATE + "mixer.mamba.expand": "expand_factor mamba_expand",
    TEMPLATE + "mixer.mamba.dt_rank": "time_step_rank mamba_dt_rank",
    TEMPLATE + "mixer.mamba.head_dim": "headdim mamba_d_head mamba_head_dim",
    TEMPLATE + "mixer.mamba.n_groups": "ngroups mamba_n_groups",
    TEMPLATE + "mixer.mamba.chunk_size": "ssm_chunk_size mamba_chunk_size",
    TEMPLATE + "mixer.mamba.conv_bias": "use_conv_bias mamba_conv_bias",
    TEMPLATE + "mixer.mamba.bias": "use_bias mamba_proj_bias",
    TEMPLATE + "mixer.hyena.short_conv": "short_filter_order conv_kernel conv_size",
    TEMPLATE + "ffn.activation": "hidden_act hidden_activation activation_function act_fn",
    TEMPLATE + "ffn.bias": "mlp_bias",
    TEMPLATE + "ffn.moe.experts": "num_experts n_experts num_local_experts n_expert n_routed_experts moe_num_experts",
    TEMPLATE + "ffn.moe.top_k": "num_experts_per_tok num_experts_per_token n_expert_per_token moe_top_k",
    TEMPLATE + "ffn.moe.d_ff": "moe_intermediate_size intermediate_size hidden_dim ffn_dim ffn_hidden_size",
    TEMPLATE + "ffn.moe.shared_experts": "n_shared_experts num_shared_experts",
    TEMPLATE + "ffn.moe.shared_d_ff": "shared_expert_intermediate_size shared_intermediate_size",
    TEMPLATE + "ffn.moe.router": "scoring_func",
    TEMPLATE + "ffn.moe.normalize_top_k": "norm_topk_prob",
    TEMPLATE + "ffn.moe.routed_scale": "routed_scaling_factor",
    TEMPLATE + "ffn.moe.z_loss": "z_loss_coef router_z_loss_coef",
    TEMPLATE + "ffn.moe.router_jitter": "router_jitter_noise",
    TEMPLATE + "ffn.moe.balance.groups": "n_group",
    TEMPLATE + "ffn.moe.balance.group_limit": "topk_group",
    "training_hints.init.std": "initializer_range init_std",
    "training_hints.dropout": "resid_pdrop embd_pdrop hidden_dropout hidden_dropout_prob",
    "training_hints.lr_peak": "learning_rate lr max_lr",
    "training_hints.grad_clip": "max_grad_norm gradient_clip",
    "training_hints.warmup_steps_ratio": "warmup_ratio",
    "training_hints.checkpointing": "gradient_checkpointing activation_checkpointing",
}
COUNTED = "layers are counted by layer_schedule: `- {template: <name>, repeat: <how many>}`. "
LISTED = "which layers there are, in order, is layer_schedule. "
# Keys that no single key of ours replaces.
NOTES = {
    **dict.fromkeys(["num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_blocks", "n_blocks"], COUNTED),
    **dict.fromkeys(["layer_types", "layers_block_type", "hybrid_override_pattern", "layers", "blocks"], LISTED),
}

GATED, MLP = "type: gated_mlp, activation: ", "type: mlp, activation: "
# A word at `type` that is no type: what it is here, by the key at which the block stands.
TYPES = {
    "mixer": {
        "mamba1": "type: mamba, mamba: {variant: mamba1}",
        "s6": "type: mamba, mamba: {variant: mamba1}",
        "mamba2": "type: mamba, mamba: {variant: mamba2}",
        "ssd": "type: mamba, mamba: {variant: mamba2}",
        "ssm": "type: mamba",
        "mha": "type: attention",
        "gqa": "type: attention",
        "mqa": "type: attention",
        "self_attention": "type: attention",
        "full_attention": "type: attention",
        "mla": "type: attention, attention: {latent_dim: 512}",
        "swa": "type: attention, attention: {window: 4096}",
        "sliding": "type: attention, attention: {window: 4096}",
        "sliding_window": "type: attention, attention: {window: 4096}",
        "sliding_attention": "type: attention, attention: {window: 4096}",
        "local_attention": "type: attention, attention: {window: 4096}",
        "retention": "type: retnet",
        "ttt": "type: ttt_layer",
        "ttt_mlp": "type: ttt_layer, ttt: {inner_model: {type: mlp}}",
        "ttt_linear": "type: ttt_layer, ttt: {inner_model: {type: linear}}",
        "identity": "type: none",
    },
    "ffn": {
        "swiglu": GATED + "swiglu",
        "silu": GATED + "swiglu",
        "geglu": GATED + "geglu",
        "glu": "type: gated_mlp",
        "gelu": MLP + "gelu",
        "gelu_tanh": MLP + "gelu_tanh",
        "gelu_new": MLP + "gelu_tanh",
        "relu": MLP + "relu",
        "relu2": MLP + "relu2",
        "dense": "type: mlp",
        "mixture_of_experts": "type: moe, moe: {experts: 8, top_k: 2}",
        "sparse_moe": "type: moe, moe: {experts: 8, top_k: 2}",
        "identity": "type: none",
    },
}
# What the snippet of a type cannot say; numbers in a snippet are examples.
REMARKS = {
    "gqa": ", with model.n_kv_heads below n_heads",
    "mqa": ", with model.n_kv_heads: 1",
    "mla": ", for a latent of 512",
    **dict.fromkeys([word for word, here in TYPES["ffn"].items() if "activation" in here], " (it is an activation)"),
    **dict.fromkeys([word for word, here in TYPES["mixer"].items() if "window" in here], ", for a window of 4096"),
}
# Words that say the same: which of them is ours depends on the key.
SAME = (
    "bfloat16 bf16",
    "float16 fp16 half",
    "float32 fp32 float single",
    "rmsnorm rms",
    "layernorm ln",
    "rope rotary",
    "learned absolute",
    "none nope",
    "swiglu silu swish",
    "gelu_tanh gelu_new gelu_pytorch_tanh gelu_fast",
    "relu2 relu_squared squared_relu relu_sq",
    "hf huggingface",
    "byte_bpe bpe",
    "hyper_connection mhc hyper hyper_connections",
    "causal_lm lm causal",
    "causal_lm_mtp mtp",
)


@cache
def ours() -> dict[str, list[str]]:
    """Addresses of our keys by the name that others give them."""
    found: dict[str, list[str]] = {}
    for address, words in KEYS.items():
        for word in words.split():
            found.setdefault(word, []).append(address)
    return found


@cache
def synonyms() -> dict[str, set[str]]:
    """All words that say the same as a word, in plain spelling."""
    groups = [set(map(plain, group.split())) for group in SAME]
    return {word: group for group in groups for word in group}


@lru_cache(maxsize=4096)
def plain(word: str) -> str:
    """A word without what spellings differ in: `RMSNorm`, `rms_norm` and `rms-norm` are one."""
    return re.sub(r"[-_.\s]", "", word[:100].casefold())


def same_word(word: object, known: list[str]) -> str:
    """The one of `known` that is this word in another spelling or dialect, or ""."""
    if not isinstance(word, str):
        return ""
    word = plain(word)
    for meant in ({word}, synonyms().get(word, ())):
        if same := [own for own in known if plain(own) in meant]:
            return same[0]
    return ""


def type_of(word: object, family: str) -> tuple[str, str]:
    """What a word at the `type` of a mixer or an ffn is here: a snippet of YAML and a remark, both "" if unknown."""
    if not isinstance(word, str):
        return "", ""
    word = next((own for own in TYPES.get(family, {}) if plain(own) == plain(word)), "")
    return TYPES[family][word] if word else "", REMARKS.get(word, "")

"""Law 1 of the language: everything that validates runs, and no key is accepted and then ignored.

For every key of the schema there is a row in ACTS: two or more of its values make models that differ where
docs/language.md says so, and nowhere else where that is named. A key that is not built yet lies under a row of LATER
and is refused by its name. A key that takes a single value is in ONLY. No key of the schema is in none of them.
"""

import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, get_args, get_origin

import pytest

from eulerstack.compiler.runtime import unbuilt
from eulerstack.errors import ValidationError
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.language.load import check

T = "layer_templates.*"
A = f"{T}.mixer<attention>.attention"
S = f"{T}.mixer<mamba>.mamba"
M = f"{T}.ffn<moe>.moe"
R = "embedding.rope_scaling"
V = "layer_schedule[].override"
H = "training_hints"
ATTENTION, MLP = {"type": "attention"}, {"type": "gated_mlp"}
MOE = {"type": "moe", "moe": {"experts": 4, "top_k": 2}}
MAMBA1 = {f"{T}.mixer": {"type": "mamba", "mamba": {"variant": "mamba1", "d_state": 8}}}
MAMBA2 = {f"{T}.mixer": {"type": "mamba", "mamba": {"variant": "mamba2", "d_state": 8, "head_dim": 8}}}
RETNET, N = {f"{T}.mixer": {"type": "retnet"}}, f"{T}.mixer<retnet>.retnet"
HYENA, Y = {f"{T}.mixer": {"type": "hyena", "hyena": {"filter_hidden": 8}}}, f"{T}.mixer<hyena>.hyena"
TTT, W = {f"{T}.mixer": {"type": "ttt_layer"}}, f"{T}.mixer<ttt_layer>.ttt"
EXPERTS, EIGHT = {f"{T}.ffn": MOE}, {f"{T}.ffn": {"type": "moe", "moe": {"experts": 8, "top_k": 2}}}
GATES = ("swiglu", "geglu", "swiglu_clamped", "gelu_tanh", "relu", "relu2")
HASH = {"type": "hash", "hash_salt": 5}
YARN = {"model.max_seq_len": 2048, R: {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}
YARN |= {"model.head_dim": 16}
LLAMA3 = {R: {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8}, "model.head_dim": 16}
LLAMA3 |= {f"{R}.low_freq_factor": 1.0, f"{R}.high_freq_factor": 4.0}
ORIGINAL = {"original_max_position_embeddings": 8}
STRETCHED = (
    {"type": "linear", "factor": 4.0},
    {"type": "dynamic", "factor": 4.0},
    {"type": "yarn", "factor": 4.0} | ORIGINAL,
    {"type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | ORIGINAL,
)
MTP = {"type": "causal_lm_mtp", "mtp": {"head_template": "one"}}
E = "execution_modes[]"
PHASED = {"execution_modes": [{"name": "think", "max_tokens": 5}, {"name": "answer", "max_tokens": 4}]}
BUDGET, SPECIAL = {"type": "budget_exhausted"}, {"type": "special_token", "token": "</x>"}
LAYERNORM = {f"{T}.norm": {"type": "layernorm"}}
U = f"{T}.memory"
WRITTEN = {f"{U}.params.hidden": 8, f"{U}.update_at_inference": True}
NEURAL, DELTA, LOOKUP = ({f"{U}.type": t} | WRITTEN for t in ("neural_memory", "associative", "retrieval"))
X = f"{T}.mixer<branched>.branched"
BRANCHES = {"one": ATTENTION, "two": {"type": "attention", "attention": {"window": 3}}}
BRANCHED = {f"{T}.mixer": {"type": "branched", "branched": {"branches": BRANCHES}}}
BEST = BRANCHED | {f"{X}.selector.type": "top_k"}
HYPER = {f"{T}.residual": {"type": "hyper_connection", "hyper": {"expand": 2}}}
SHAPED = {f"{T}.shape_change.d_out": 8}
C, INDEXER = f"{A}.compression", {"arch": "relu_mha", "n_heads": 2, "d_per_head": 4}
CSA = {C: {"type": "csa", "m_block": 3, "top_k_blocks": 2, "indexer": INDEXER}}
HCA = {C: {"type": "hca", "m_block": 3}}
NSA = {C: {"type": "nsa_learned", "m_block": 3, "indexer": INDEXER}}
QAT = "compatibility.quant_aware_training"
G = "layer_schedule[].depth_gating"
P = "layer_schedule[].parallel"
Z = "layer_schedule[].integrator"
TWO = {"layer_templates.two": {"mixer": {"type": "none"}, "ffn": {"type": "mlp"}}}
BODIES = {"a": [{"template": "one"}], "b": [{"template": "two"}]}
STREAMS = TWO | {"layer_schedule": [{"parallel": [{"stream": name, "body": body} for name, body in BODIES.items()]}]}
ACROSS = STREAMS | {"layer_schedule[].merge": {"type": "cross_attn", "from": "a", "to": "b"}}
THIRD = [{"stream": name, "body": [{"template": "one"}]} for name in "abc"]
THREE = {P: THIRD}
STEPS = TWO | {"layer_schedule": [{"integrator": {"type": "ode_euler", "steps": 2, "body": "one"}}]}


@dataclass(frozen=True)
class Row:
    """`values` of `key` differ pairwise in what the observer `shows` sees, and in none of `same`; `...` is no value.

    `given` is what else the preset says. `alike` are values that mean the same as the first.
    """

    key: str
    values: tuple
    shows: str = "logits"
    same: tuple[str, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    alike: tuple = ()


ACTS = [
    Row("model.name", ("one", "two"), "name"),
    Row("model.family_hint", ("llama", "mamba"), "warnings", ("logits",)),
    Row("model.family_hint", (..., "llama"), "config", ("logits",)),
    Row("model.d_model", (16, 32), "shapes"),
    Row("model.vocab_size", (270, 300), "shapes"),
    Row("model.max_seq_len", (64, 80), "positions", ("logits",)),
    Row("model.max_seq_len", (64, 80), "shapes", given={"embedding.positional": "learned"}),
    Row("model.n_heads", (4, 2), same=("shapes",)),
    Row("model.n_kv_heads", (4, 2, 1), "shapes", alike=(...,)),
    Row("model.mlp_ratio", (2, 3.5), "shapes"),
    Row("model.dtype", ("float32", "float16", "bfloat16"), "stored", ("shapes",)),
    Row("model.target_params", (1, 10_000_000), "warnings", ("logits",)),
    Row("model.head_dim", (..., 6), "shapes"),
    Row("model.d_ff", (..., 7), "shapes"),
    Row("model.norm_eps", (..., 0.1), same=("shapes",)),
    Row("tokenizer_contract", ({"type": "hf", "pretrained": "tok"}, {"type": "byte_bpe"}), "tokenizer"),
    Row("tokenizer_contract.pretrained", ("tok", "other"), "tokenizer", given={"tokenizer_contract.type": "hf"}),
    Row("tokenizer_contract.corpus", (..., "corpus.jsonl"), "tokenizer"),
    Row("tokenizer_contract.add_bos", (True, False), "tokenizer", alike=(...,)),
    Row("tokenizer_contract.add_eos", (True, False), "tokenizer", alike=(...,)),
    Row("tokenizer_contract.pad_token", (..., "<pad>"), "tokenizer"),
    Row("embedding.positional", ("rope", "alibi", "none", "learned")),
    Row("embedding.rope_theta", (..., 100.0)),
    Row(R, (..., *STRETCHED), given={"model.max_seq_len": 16, "model.head_dim": 16}),
    Row(f"{R}.factor", (2, 4.0), given={f"{R}.type": "linear"}),
    Row(f"{R}.factor", (2, 4.0), given={f"{R}.type": "dynamic", "model.max_seq_len": 16}),
    Row(f"{R}.factor", (2, 4.0), given=YARN),
    Row(f"{R}.factor", (2, 4.0), given=LLAMA3),
    Row(f"{R}.original_max_position_embeddings", (512, 64), given=YARN),
    Row(f"{R}.original_max_position_embeddings", (8, 4), given=LLAMA3),
    Row(f"{R}.attention_factor", (..., 1.0, 2.0), given=YARN),
    Row(f"{R}.beta_fast", (..., 2.0), given=YARN),
    Row(f"{R}.beta_slow", (..., 0.1), given=YARN),
    Row(f"{R}.mscale", (0.5, 2.0), given=YARN | {f"{R}.mscale_all_dim": 1.0}),
    Row(f"{R}.mscale_all_dim", (0.5, 2.0), given=YARN | {f"{R}.mscale": 1.0}),
    Row(
        f"{R}.mscale_all_dim", (0.5, 2.0), given=YARN | {f"{R}.mscale": 1.0, f"{A}.latent_dim": 6, f"{A}.v_head_dim": 4}
    ),
    Row(f"{R}.truncate", (True, False), given=YARN, alike=(...,)),
    Row(f"{R}.low_freq_factor", (1.0, 2.0), given=LLAMA3),
    Row(f"{R}.high_freq_factor", (4.0, 8.0), given=LLAMA3),
    Row("embedding.rope_fraction", (..., 0.5)),
    Row("embedding.tie_word_embeddings", (True, False), "warnings", ("logits",), alike=(...,)),
    Row("embedding.scale", (..., 4.0)),
    Row(f"{A}.qkv_bias", (False, True), "shapes", alike=(...,)),
    Row(f"{A}.qkv_bias", (False, True), "shapes", given={f"{A}.latent_dim": 6}),
    Row(f"{A}.o_bias", (False, True), "shapes", alike=(...,)),
    Row(f"{A}.attn_drop", (..., 0.5), "train", ("logits", "loss")),
    Row(f"{A}.window", (..., 1, 5, 11)),
    Row(f"{A}.window_mode", ("standard", "nsa"), given={f"{A}.window": 3}, alike=(..., "sliding")),
    Row(f"{A}.window_mode", ("dilated", "nsa"), given={f"{A}.window": 3, f"{A}.window_dilation": 2}),
    Row(f"{A}.window_dilation", (..., 2), given={f"{A}.window": 7, f"{A}.window_mode": "dilated"}, alike=(1,)),
    Row(f"{A}.window_dilation", (..., 2), given={f"{A}.window": 3, f"{A}.window_mode": "nsa"}, alike=(4,)),
    Row(f"{A}.latent_dim", (..., 6, 10), "shapes"),
    Row(f"{A}.q_latent_dim", (..., 7, 9), "shapes", given={f"{A}.latent_dim": 6, f"{A}.qk_rope_dim": 4}),
    Row(f"{A}.q_latent_dim", (7, 9), given={f"{A}.latent_dim": 6}),
    Row(f"{A}.qk_rope_dim", (..., 4, 6), "shapes", given={f"{A}.latent_dim": 6}),
    Row(f"{A}.qk_rope_dim", (6, 8), given={f"{A}.latent_dim": 6}),
    Row(f"{A}.qk_nope_dim", (..., 3, 5), "shapes", given={f"{A}.latent_dim": 6}),
    Row(f"{A}.qk_nope_dim", (..., 5), "shapes", given={f"{A}.latent_dim": 6, f"{A}.v_head_dim": 4}, alike=(4,)),
    Row(f"{A}.v_head_dim", (..., 3, 5), "shapes", given={f"{A}.latent_dim": 6}),
    Row(f"{A}.v_head_dim", (..., 5), "shapes", given={f"{A}.latent_dim": 6, f"{A}.qk_nope_dim": 4}, alike=(4,)),
    Row(f"{A}.attention_sinks.n_per_head", (0, 1, 2), "shapes", given={f"{A}.attention_sinks": {}}),
    Row(f"{A}.attention_sinks.n_per_head", (0, 1, 2), given={f"{A}.attention_sinks": {"learnable": False}}),
    Row(f"{A}.attention_sinks.n_per_head", (..., 2), given={f"{A}.attention_sinks": {}}, alike=(1,)),
    Row(f"{A}.attention_sinks.learnable", (True, False), "shapes", given={f"{A}.attention_sinks": {}}, alike=(...,)),
    Row(f"{A}.attention_sinks.learnable", (True, False), given={f"{A}.attention_sinks": {}}),
    Row(f"{A}.qk_norm", ("none", "rmsnorm", "rmsnorm_full"), "shapes", alike=(...,)),
    Row(f"{A}.qk_norm", ("none", "rmsnorm", "rmsnorm_full")),
    Row(f"{A}.logit_softcap", (..., 0.5)),
    Row(f"{A}.scale", (..., 1.0), alike=(0.5,)),
    Row(C, (..., CSA[C], HCA[C], NSA[C]), "shapes"),
    *(Row(f"{C}.m_block", (3, 1, 2, 5), same=("shapes",), given=kind) for kind in (CSA, HCA, NSA)),
    Row(f"{C}.pool", ("mean", "max", "softmax_gated", "learned_pool"), given=HCA, alike=(...,)),
    Row(f"{C}.pool", ("mean", "max", "softmax_gated", "learned_pool"), given=CSA, alike=(...,)),
    Row(f"{C}.top_k_blocks", (2, 1, 4), same=("shapes",), given=CSA),
    Row(f"{C}.top_k_blocks", (..., 1, 2), same=("shapes",), given=NSA, alike=(16,)),
    *(
        Row(f"{C}.indexer.arch", ("relu_mha", "dot_product", "learned_block_sel"), given=kind)
        for kind in (CSA, NSA | {f"{C}.top_k_blocks": 2})
    ),
    Row(f"{C}.indexer.n_heads", (2, 1, 3), "shapes", given=CSA),
    Row(f"{C}.indexer.d_per_head", (4, 6), "shapes", given=CSA),
    Row(f"{C}.indexer.dtype", ("bf16", "fp4", "fp8", "fp32"), "gradients", ("shapes",), CSA, (...,)),
    Row(f"{A}.window", (..., 2, 5), same=("shapes",), given=CSA),
    Row(f"{A}.qk_norm", ("none", "rmsnorm", "rmsnorm_full"), "shapes", given=NSA, alike=(...,)),
    Row(f"{A}.logit_softcap", (..., 0.5), given=CSA),
    Row("embedding.positional", ("rope", "alibi", "none", "learned"), given=CSA),
    Row(f"{S}.variant", ("mamba1", "mamba2"), "shapes", given={f"{T}.mixer.type": "mamba", "model.d_model": 32}),
    Row(f"{S}.d_state", (8, 4), "shapes", given=MAMBA1),
    Row(f"{S}.d_state", (8, 4), "shapes", given=MAMBA2),
    Row(f"{S}.d_conv", (..., 1, 3), "shapes", given=MAMBA1),
    Row(f"{S}.d_conv", (..., 1, 3), "shapes", given=MAMBA2),
    Row(f"{S}.expand", (..., 3), "shapes", given=MAMBA1),
    Row(f"{S}.expand", (..., 3), "shapes", given=MAMBA2),
    Row(f"{S}.head_dim", (8, 4), "shapes", given=MAMBA2),
    Row(f"{S}.n_groups", (..., 2), "shapes", given=MAMBA2),
    Row(f"{S}.chunk_size", (..., 8), "config", ("logits",), given=MAMBA2),
    Row(f"{S}.dt_rank", (..., 3), "shapes", given=MAMBA1),
    Row(f"{S}.conv_bias", (True, False), "shapes", given=MAMBA1, alike=(...,)),
    Row(f"{S}.conv_bias", (True, False), "shapes", given=MAMBA2, alike=(...,)),
    Row(f"{S}.bias", (False, True), "shapes", given=MAMBA1, alike=(...,)),
    Row(f"{S}.bias", (False, True), "shapes", given=MAMBA2, alike=(...,)),
    Row(f"{S}.inner_norm", (False, True), "shapes", given=MAMBA1, alike=(...,)),
    Row(f"{T}.mixer", (ATTENTION, TTT[f"{T}.mixer"]), "shapes"),
    Row(f"{W}.inner_model.type", ("mlp", "linear"), "shapes", given=TTT, alike=(...,)),
    Row(f"{W}.inner_model.hidden", (..., 8), "shapes", given=TTT, alike=(256,)),
    Row(f"{W}.inner_optimizer", ("sgd", "adamw"), same=("shapes",), given=TTT, alike=(...,)),
    Row(f"{W}.inner_lr", (..., 0.1), same=("shapes",), given=TTT, alike=(0.01,)),
    Row(f"{W}.inner_steps_per_token", (..., 2), same=("shapes",), given=TTT, alike=(1,)),
    Row(f"{W}.mini_batch", (..., 1, 5), same=("shapes",), given=TTT, alike=(16,)),
    Row(f"{T}.mixer", (ATTENTION, RETNET[f"{T}.mixer"], HYENA[f"{T}.mixer"]), "shapes"),
    Row(f"{N}.chunkwise", (True, False), "config", ("logits", "shapes"), given=RETNET, alike=(...,)),
    Row(f"{N}.chunk_size", (..., 5), "config", ("logits", "shapes"), given=RETNET, alike=(64,)),
    Row(f"{N}.rope", (True, False), same=("shapes",), given=RETNET, alike=(...,)),
    Row("embedding.rope_theta", (..., 100.0), same=("shapes",), given=RETNET),
    Row("model.n_kv_heads", (4, 2, 1), "shapes", given=RETNET, alike=(...,)),
    Row(f"{Y}.depth", (..., 1, 3), "shapes", given=HYENA, alike=(2,)),
    Row(f"{Y}.filter_hidden", (..., 5), "shapes", given=HYENA),
    Row(f"{Y}.filter_decay", (..., 1.5, 20.0), same=("shapes",), given=HYENA, alike=(0.0,)),
    Row(f"{Y}.short_conv", (..., 1, 4), "shapes", given=HYENA, alike=(3,)),
    Row(f"{T}.ffn<mlp>.activation", ("gelu", "gelu_tanh", "relu", "relu2"), given={f"{T}.ffn.type": "mlp"}),
    Row(f"{T}.ffn<mlp>.bias", (False, True), "shapes", given={f"{T}.ffn.type": "mlp"}, alike=(...,)),
    Row(f"{T}.ffn<gated_mlp>.activation", GATES, alike=(...,)),
    Row(f"{T}.ffn<gated_mlp>.activation", ("gelu",), alike=("geglu",)),
    Row(f"{T}.ffn<gated_mlp>.bias", (False, True), "shapes", alike=(...,)),
    Row(f"{T}.ffn<moe>.activation", GATES, given=EXPERTS, alike=(...,)),
    Row(f"{T}.ffn<moe>.activation", ("gelu",), given=EXPERTS, alike=("geglu",)),
    Row(f"{T}.ffn<moe>.bias", (False, True), "shapes", given=EXPERTS, alike=(...,)),
    Row(f"{M}.experts", (4, 3), "shapes", given=EXPERTS),
    Row(f"{M}.top_k", (1, 2, 4), same=("shapes",), given=EXPERTS),
    Row(f"{M}.router", ("softmax", "sigmoid"), given=EXPERTS, alike=(...,)),
    Row(f"{M}.affinity", ("softmax", "sigmoid", "sqrt_softplus"), given=EXPERTS),
    Row(f"{M}.affinity", (..., "softmax"), given=EXPERTS | {f"{M}.router": "sigmoid"}),
    Row(f"{M}.normalize_top_k", (True, False), given=EXPERTS, alike=(...,)),
    Row(f"{M}.routed_scale", (..., 2.5), given=EXPERTS, alike=(1,)),
    Row(f"{M}.d_ff", (..., 5), "shapes", given=EXPERTS),
    Row(f"{M}.shared_experts", (..., 1, 2), "shapes", given=EXPERTS, alike=(0,)),
    Row(f"{M}.shared_d_ff", (..., 5), "shapes", given=EXPERTS | {f"{M}.shared_experts": 1}),
    Row(f"{M}.z_loss", (..., 0.1), "loss", ("logits",), given=EXPERTS),
    Row(f"{M}.load_balance_coef", (..., 0.1, 0), "loss", ("logits",), given=EXPERTS),
    Row(f"{M}.capacity_factor", (..., 0.5), "train", ("logits",), EXPERTS | {f"{M}.capacity_drop_policy": "drop"}),
    Row(f"{M}.capacity_factor", (..., 0.5), "train", ("logits",), EXPERTS | {f"{M}.capacity_drop_policy": "pad"}),
    Row(f"{M}.capacity_drop_policy", ("overflow", "drop"), "train", ("logits",), EXPERTS),
    Row(f"{M}.capacity_drop_policy", ("drop", "pad"), "config", ("logits", "train"), EXPERTS),
    Row(f"{M}.router_bias", (False, True), "shapes", given=EXPERTS, alike=(...,)),
    Row(f"{M}.router_bias", (False, True), given=EXPERTS | {f"{M}.routing": HASH}),
    Row(f"{M}.router_bias", (False, True), given=EXPERTS),
    Row(f"{M}.router_init_std", (..., 0.5), "drawn", ("logits",), EXPERTS),
    Row(f"{M}.router_jitter", (..., 0.3), "train", ("logits",), EXPERTS),
    Row(f"{M}.bias_correction.enabled", (False, True), "moved", ("logits",), EXPERTS, alike=(...,)),
    Row(
        f"{M}.bias_correction.update_rate", (..., 1.0), "moved", given=EXPERTS | {f"{M}.bias_correction.enabled": True}
    ),
    Row(
        f"{M}.bias_correction.target_imbalance",
        (..., 9.0),
        "moved",
        given=EXPERTS | {f"{M}.bias_correction.enabled": True},
    ),
    Row(f"{M}.routing", ({"type": "learned"}, HASH, HASH | {"hash_salt": 6}), "logits", ("shapes",), EXPERTS, (...,)),
    Row(f"{M}.balance.sequence_aux_coef", (..., 0.5), "loss", ("logits",), EXPERTS, (0,)),
    Row(f"{M}.balance.group_limit", (..., 1), same=("shapes",), given=EXPERTS, alike=(2,)),
    Row(f"{M}.balance.groups", (..., 2), given=EIGHT | {f"{M}.balance.group_limit": 1}, alike=(4,)),
    Row(f"{T}.mixer", (ATTENTION, MAMBA1[f"{T}.mixer"], MAMBA2[f"{T}.mixer"], {"type": "none"}), "shapes"),
    Row(f"{T}.ffn", ({"type": "mlp"}, MLP, MOE, {"type": "none"}), "shapes"),
    Row(f"{T}.norm.type", ("rmsnorm", "layernorm"), alike=(...,)),
    Row(f"{T}.norm.position", ("pre", "post", "sandwich", "post_branch"), alike=(...,)),
    Row(f"{T}.norm.unit_offset", (False, True), same=("shapes",), alike=(...,)),
    Row(f"{T}.norm.unit_offset", (False, True), "drawn"),
    Row(f"{T}.norm.bias", (True, False), "shapes", given=LAYERNORM, alike=(...,)),
    Row(f"{T}.residual.type", ("sequential", "parallel"), alike=(...,)),
    Row(f"{T}.residual.scaling", (..., 0.5), same=("shapes",)),
    Row(f"{T}.state.kv_cache", (True, False), "verdict", alike=(...,)),
    Row(f"{T}.state.ssm_state", (False, True), "verdict", alike=(...,)),
    Row(f"{U}.type", ("neural_memory", "associative", "retrieval"), "shapes", given=WRITTEN),
    *(
        Row(f"{U}.update_at_inference", (False, True), "logits", ("shapes", "train"), m, (...,))
        for m in (NEURAL, DELTA)
    ),
    Row(f"{U}.update_at_inference", (False, True), "logits", ("shapes", "train"), LOOKUP, (...,)),
    *(Row(f"{U}.params.hidden", (8, 12), "shapes", given=m) for m in (NEURAL, DELTA)),
    Row(f"{U}.params.hidden", (..., 3), same=("shapes",), given=LOOKUP, alike=(2048,)),
    *(Row(f"{U}.inner_lr", (..., 0.1), same=("shapes",), given=m, alike=(0.001,)) for m in (NEURAL, DELTA)),
    Row(f"{U}.inner_lr", (..., 0.1), "warnings", ("logits",), LOOKUP),
    *(
        Row(f"{U}.persistence", ("session", "per_query"), "continued", ("logits", "shapes"), m, (..., "persistent"))
        for m in (NEURAL, DELTA, LOOKUP)
    ),
    *(Row(f"{U}.persistence", ("session", "persistent"), "shapes", ("logits",), m) for m in (NEURAL, DELTA, LOOKUP)),
    Row("layer_schedule[].template", ("one", "two"), given={"layer_templates.two": {"mixer": ATTENTION, "ffn": MOE}}),
    Row("layer_schedule[].repeat", (1, 3), "depth", alike=(...,)),
    Row(f"{P}[].stream", ("a", "c"), "names", ("logits",), given=STREAMS),
    Row(f"{P}[].body[].template", ("one", "two"), "shapes", given=STREAMS),
    Row(f"{P}[].body[].repeat", (1, 2), "depth", given=STREAMS, alike=(...,)),
    Row("layer_schedule[].merge.type", ("concat", "add", "gated"), "shapes", given=STREAMS, alike=(...,)),
    Row("layer_schedule[].merge", ({"type": "add"}, ACROSS["layer_schedule[].merge"]), "shapes", given=STREAMS),
    Row("layer_schedule[].merge.type", ("cross_attn",), given=ACROSS),
    Row(
        "layer_schedule[].merge.projection",
        (True, False),
        "shapes",
        given=STREAMS | {"layer_schedule[].merge.type": "add"},
        alike=(...,),
    ),
    Row("layer_schedule[].merge.from", ("a", "b"), given=ACROSS | {"layer_schedule[].merge.to": "c"} | THREE),
    Row("layer_schedule[].merge.to", ("a", "b"), given=ACROSS | {"layer_schedule[].merge.from": "c"} | THREE),
    Row(f"{Z}.type", ("discrete", "ode_euler", "ode_rk4"), same=("shapes",), given=STEPS),
    Row(f"{Z}.steps", (1, 2, 3), same=("shapes",), given=STEPS),
    Row(f"{Z}.body", ("one", "two"), "shapes", given=STEPS),
    Row(f"{Z}.output", ("token", "hidden"), "shapes", given=STEPS, alike=(...,)),
    Row(f"{V}.residual.scaling", (..., 0.5)),
    Row(f"{V}.attention.window", (..., 3, None), given={f"{A}.window": 6}, alike=("inherit",)),
    Row(f"{V}.attention.attn_drop", (..., 0.5), "train", ("logits",)),
    Row(f"{V}.norm.type", ("rmsnorm", "layernorm"), alike=(...,)),
    Row(f"{V}.norm.position", ("pre", "post", "sandwich", "post_branch"), alike=(...,)),
    Row(f"{V}.ffn.activation", GATES, alike=(...,)),
    Row(f"{V}.ffn.activation", ("gelu",), alike=("geglu",)),
    Row(f"{T}.mixer", (ATTENTION, BRANCHED[f"{T}.mixer"]), "shapes"),
    Row(f"{X}.branches.*", (ATTENTION, MAMBA2[f"{T}.mixer"]), "shapes", given=BRANCHED),
    Row(f"{X}.selector.type", ("learned_gate", "top_k"), same=("shapes",), given=BRANCHED, alike=(...,)),
    Row(f"{X}.selector.top_k", (1, 2), same=("shapes",), given=BEST, alike=(...,)),
    Row(f"{X}.selector.input", ("hidden",), given=BRANCHED, alike=(...,)),
    Row(f"{T}.residual", ({"type": "sequential"}, {"type": "parallel"}, HYPER[f"{T}.residual"])),
    Row(f"{T}.residual.hyper.expand", (1, 2, 3), "shapes", given=HYPER),
    Row(f"{T}.residual.hyper.expand", (1, 2, 3), given=HYPER),
    Row(f"{T}.residual.hyper.mixing", ("birkhoff", "unconstrained", "learned_lowrank"), "shapes", (), HYPER, (...,)),
    Row(f"{T}.residual.hyper.sinkhorn_iters", (3, 0, 1, 2), same=("shapes",), given=HYPER, alike=(...,)),
    Row(f"{T}.shape_change.d_out", (8, 16, 24), "shapes", given=SHAPED),
    Row(f"{T}.shape_change.projection", ("linear", "conv1d", "mlp"), "shapes", given=SHAPED, alike=(...,)),
    Row(f"{G}.enabled", (True, False), "shapes", given={G: {"capacity": 0.25}}, alike=(...,)),
    Row(f"{G}.capacity", (..., 0.25, 1), "train", ("logits", "shapes"), given={G: {}}, alike=(0.5,)),
    Row(f"{G}.router", ("top_k", "learned_gate"), "shapes", given={G: {}}, alike=(...,)),
    Row(f"{G}.router", ("top_k", "learned_gate"), given={G: {}}, alike=(...,)),
    Row("head", ({"type": "causal_lm"}, MTP), "shapes", ("logits", "loss")),
    Row("head.mtp.n_predict", (1, 2), "shapes", ("logits",), {"head": MTP}, (...,)),
    Row("head.mtp.head_layers", (1, 2), "shapes", ("logits",), {"head": MTP}, (...,)),
    Row("head.mtp.head_template", ("one", "two"), "shapes", ("logits",), {"head": MTP} | TWO),
    Row("head.mtp.train_loss_weight", (..., 0.3, 0), "training", ("loss",), {"head": MTP}, (0.1,)),
    Row("head.tie_weights", (True, False), "shapes", alike=(...,)),
    Row("head.logit_softcap", (..., 1.0)),
    Row("head.bias", (False, True), "shapes", alike=(...,)),
    Row("head.final_norm", (True, False), "shapes", alike=(...,)),
    Row("head.final_norm", (False, True), "shapes", given={f"{T}.norm.position": "post"}, alike=(...,)),
    Row(H + ".init", ("normal_0.02", {"std": 0.03}), "drawn", alike=(..., {"std": 0.02}, {})),
    Row(H + ".init.std", (..., 0.03), "drawn", ("logits",)),
    Row(H + ".init.scheme", ("normal", "truncated_normal", "scaled_residual", "mup"), "drawn", ("logits",)),
    Row(H + ".dropout", (..., 0.5), "train", ("logits",)),
    Row(H + ".seed", (..., 7), "drawn", ("logits",), alike=(42,)),
    Row(H + ".router_aux_loss_coef", (..., 0), "loss", ("logits",), EXPERTS),
    Row(H + ".checkpointing", (..., True), "hints"),
    Row(H + ".router_aux_loss_coef", (..., 0.1), "hints"),
    Row(H + ".lr_peak", (..., 1e-3), "hints"),
    Row(H + ".lr_floor_ratio", (..., 0.2), "hints"),
    Row(H + ".betas", (..., [0.9, 0.99]), "hints"),
    Row(H + ".weight_decay", (..., 0.0), "hints"),
    Row(H + ".grad_clip", (..., 0), "hints"),
    Row(H + ".warmup_steps_ratio", (..., 0.0), "hints"),
    Row(H + ".router_lr_multiplier", (..., 0.5), "hints"),
    Row(H + ".optimizer", ("adamw", "muon", "hybrid"), "hints"),
    Row(H + ".optimizer_groups.muon", (["*.q_proj.*"], ["*"]), "hints"),
    Row(H + ".optimizer_groups.adamw", (["*.q_proj.*"], ["*"]), "hints"),
    Row(H + ".muon.ns_iters", (1, 2), "hints"),
    Row(H + ".muon.ns_coefs", ([1.0], [2.0, 0.5]), "hints"),
    Row(H + ".muon.stabilize_iters", (0, 1), "hints"),
    Row(H + ".muon.stabilize_coefs", ([1.0], [2.0]), "hints"),
    Row(f"{E}.name", ("think", "plan"), "phases", ("logits",), PHASED),
    Row(f"{E}.max_tokens", (5, 3), "phases", ("logits",), PHASED),
    Row(f"{E}.kv_share", (True, False), "phases", ("logits",), PHASED | {f"{E}.visible_to_user": False}, (...,)),
    Row(f"{E}.loss_weight", (..., 0.5, 0), "labels", ("logits", "phases"), PHASED, (1,)),
    Row(f"{E}.visible_to_user", (True, False), "phases", ("logits",), PHASED, (...,)),
    Row(f"{E}.per_token_rationale", (False, True), "config", ("logits", "phases"), PHASED, (...,)),
    Row("transition", (BUDGET, SPECIAL), "phases", ("logits",), PHASED, (...,)),
    Row("transition.token", ("</x>", "<y>"), "tokenizer", ("logits",), PHASED | {"transition": SPECIAL}),
    Row("compatibility.compile_target", ("huggingface",), alike=(...,)),
    Row("compatibility.dtype_policy", ("uniform", "layered_safe"), "bfloat16", ("logits",), alike=(...,)),
    Row(f"{QAT}.enabled", (False, True), same=("shapes",), alike=(...,)),
    Row(f"{QAT}.dtype", ("fp4", "fp8", "int8"), same=("shapes",), given={f"{QAT}.enabled": True}, alike=(...,)),
    Row(f"{QAT}.scope", (..., ["*.ffn.*"], ["model.layers.1.*"]), given={f"{QAT}.enabled": True}, alike=([],)),
    Row(f"{QAT}.scope", (["*.experts.*"], ["*"]), given=EXPERTS | {f"{QAT}.enabled": True}),
    Row(
        f"{QAT}.dequant_to",
        (..., "fp4", "fp8", "bf16"),
        given={QAT: {"enabled": True, "dtype": "int8"}},
        alike=("fp32",),  # the rounded numbers have few bits
    ),
]

# Keys that say one thing only, and what else they could wrongly say.
ONLY = {"schema_version": 2, "embedding.type": "fourier"}

# The words of an enumeration that is built in part which are not built yet; LATER has them in use.
LATER_WORDS = {
    "compatibility.compile_target": {"native"},
}
# A subtree of keys that no modeling code builds yet: a preset that uses it, and the word of the refusal.
LATER = {
    "compatibility.compile_target": ({"compatibility.compile_target": "native"}, "native"),
}


def name_of(row: Row) -> str:
    return f"{row.key}-{row.shows}"


@pytest.mark.parametrize("row", ACTS, ids=name_of)
def test_a_key_acts(row, preset, observe, alike):
    trees = [preset(row.given | {row.key: value}) for value in row.values]
    seen = [observe(row.shows, tree) for tree in trees]
    for (i, a), (j, b) in combinations(enumerate(seen), 2):
        assert not alike(a, b), f"{row.values[i]} and {row.values[j]} give the same {row.shows}"
    for other in row.same:
        first, *rest = (observe(other, tree) for tree in trees)
        assert all(alike(first, again) for again in rest), f"the values differ in {other}"
    for value in row.alike:
        again = observe(row.shows, preset(row.given | {row.key: value}))
        assert alike(seen[0], again), f"{value} is not as {row.values[0]}"


@pytest.mark.parametrize("key", LATER)
def test_a_key_that_is_not_built_is_refused_by_its_name(key, preset):
    values, word = LATER[key]
    (problem,) = unbuilt(normalize_to_ir(preset(values)))
    assert problem.category == "CompileError"
    assert word in f"{problem.where}: {problem.what}"
    assert "not built yet" in problem.what


@pytest.mark.parametrize("key", ONLY)
def test_a_key_says_one_thing_only(key, preset):
    check(preset({}))
    with pytest.raises(ValidationError, match=key):
        check(preset({key: ONLY[key]}))


def test_a_variable_acts(preset, observe):
    trees = [preset({"let": {"w": value}, f"{A}.window": "${let.w}"}) for value in (3, 5)]
    assert not observe("logits", trees[0]).equal(observe("logits", trees[1]))


def is_under(key: str, root: str) -> bool:
    return key == root or key.startswith((f"{root}.", f"{root}[", f"{root}<"))


def values_of(key: str) -> list[Any]:
    """Every value that a row gives to a key, alone or within a block."""
    rows = [value for row in ACTS if row.key == key for value in (*row.values, *row.alike)]
    *_, parent, last = ["", *key.rsplit(".", 1)]
    parent = re.sub(r"<\w+>$", "", parent) if last == "type" else parent
    within = [value for row in ACTS if row.key == parent for value in row.values]
    return rows + [value[last] for value in within if isinstance(value, dict) and last in value]


def test_no_key_of_the_schema_is_left_out(schema):
    blocks = {f"{T}.mixer", f"{T}.ffn", f"{T}.residual", f"{M}.routing", "tokenizer_contract", "head", "transition"}
    blocks |= {R, C, "layer_schedule[].merge"}
    later = {key for key in schema if any(is_under(key, root) for root in LATER)}
    left = [key for key in schema if not values_of(key) and key not in {*later, *ONLY, "let.*"}]
    assert left == []
    assert {row.key for row in ACTS} - blocks <= schema.keys()
    assert all(any(is_under(key, root) for key in schema) for root in LATER)


def test_every_word_of_an_enumeration_has_its_row(schema):
    for key, kinds in schema.items():
        words = {word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)}
        later = LATER_WORDS.get(key, set())
        if words and key not in ONLY and not any(is_under(key, root) and root != key for root in LATER):
            assert words - {v for v in values_of(key) if isinstance(v, str)} <= later, key

"""Rows of the keys of every mixer."""

from pathlib import Path
from runpy import run_path

ROWS = run_path(str(Path(__file__).with_name("rows.py")))
Row, T, A, ATTENTION = (ROWS[name] for name in ("Row", "T", "A", "ATTENTION"))
S = f"{T}.mixer<mamba>.mamba"
MAMBA1 = {f"{T}.mixer": {"type": "mamba", "mamba": {"variant": "mamba1", "d_state": 8}}}
MAMBA2 = {f"{T}.mixer": {"type": "mamba", "mamba": {"variant": "mamba2", "d_state": 8, "head_dim": 8}}}
RETNET, N = {f"{T}.mixer": {"type": "retnet"}}, f"{T}.mixer<retnet>.retnet"
HYENA, Y = {f"{T}.mixer": {"type": "hyena", "hyena": {"filter_hidden": 8}}}, f"{T}.mixer<hyena>.hyena"
TTT, W = {f"{T}.mixer": {"type": "ttt_layer"}}, f"{T}.mixer<ttt_layer>.ttt"
X = f"{T}.mixer<branched>.branched"
BRANCHES = {"one": ATTENTION, "two": {"type": "attention", "attention": {"window": 3}}}
BRANCHED = {f"{T}.mixer": {"type": "branched", "branched": {"branches": BRANCHES}}}
BEST = BRANCHED | {f"{X}.selector.type": "top_k"}
C, INDEXER = f"{A}.compression", {"arch": "relu_mha", "n_heads": 2, "d_per_head": 4}
CSA = {C: {"type": "csa", "m_block": 3, "top_k_blocks": 2, "indexer": INDEXER}}
HCA = {C: {"type": "hca", "m_block": 3}}
NSA = {C: {"type": "nsa_learned", "m_block": 3, "indexer": INDEXER}}

ACTS = [
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
    Row(f"{T}.mixer", (ATTENTION, MAMBA1[f"{T}.mixer"], MAMBA2[f"{T}.mixer"], {"type": "none"}), "shapes"),
    Row(f"{T}.mixer", (ATTENTION, BRANCHED[f"{T}.mixer"]), "shapes"),
    Row(f"{X}.branches.*", (ATTENTION, MAMBA2[f"{T}.mixer"]), "shapes", given=BRANCHED),
    Row(f"{X}.selector.type", ("learned_gate", "top_k"), same=("shapes",), given=BRANCHED, alike=(...,)),
    Row(f"{X}.selector.top_k", (1, 2), same=("shapes",), given=BEST, alike=(...,)),
    Row(f"{X}.selector.input", ("hidden",), given=BRANCHED, alike=(...,)),
]

"""Rows of every key that is not of a layer: sizes, tokenizer, embedding, head, hints, precision, phases."""

from pathlib import Path
from runpy import run_path

ROWS = run_path(str(Path(__file__).with_name("rows.py")))
Row, T, A, EXPERTS, TWO = (ROWS[name] for name in ("Row", "T", "A", "EXPERTS", "TWO"))
R = "embedding.rope_scaling"
H = "training_hints"
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
QAT = "compatibility.quant_aware_training"

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

"""Rows of the keys of a layer beside its mixer, and of the schedule."""

from pathlib import Path
from runpy import run_path

ROWS = run_path(str(Path(__file__).with_name("rows.py")))
Row, T, A, ATTENTION, MLP, MOE, EXPERTS, TWO = (
    ROWS[name] for name in ("Row", "T", "A", "ATTENTION", "MLP", "MOE", "EXPERTS", "TWO")
)
M = f"{T}.ffn<moe>.moe"
V = "layer_schedule[].override"
EIGHT = {f"{T}.ffn": {"type": "moe", "moe": {"experts": 8, "top_k": 2}}}
GATES = ("swiglu", "geglu", "swiglu_clamped", "gelu_tanh", "relu", "relu2")
HASH = {"type": "hash", "hash_salt": 5}
LAYERNORM = {f"{T}.norm": {"type": "layernorm"}}
U = f"{T}.memory"
WRITTEN = {f"{U}.params.hidden": 8, f"{U}.update_at_inference": True}
NEURAL, DELTA, LOOKUP = ({f"{U}.type": t} | WRITTEN for t in ("neural_memory", "associative", "retrieval"))
HYPER = {f"{T}.residual": {"type": "hyper_connection", "hyper": {"expand": 2}}}
SHAPED = {f"{T}.shape_change.d_out": 8}
G = "layer_schedule[].depth_gating"
P = "layer_schedule[].parallel"
Z = "layer_schedule[].integrator"
BODIES = {"a": [{"template": "one"}], "b": [{"template": "two"}]}
STREAMS = TWO | {"layer_schedule": [{"parallel": [{"stream": name, "body": body} for name, body in BODIES.items()]}]}
ACROSS = STREAMS | {"layer_schedule[].merge": {"type": "cross_attn", "from": "a", "to": "b"}}
THIRD = [{"stream": name, "body": [{"template": "one"}]} for name in "abc"]
THREE = {P: THIRD}
STEPS = TWO | {"layer_schedule": [{"integrator": {"type": "ode_euler", "steps": 2, "body": "one"}}]}

ACTS = [
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
]

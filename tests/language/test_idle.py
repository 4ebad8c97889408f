"""Keys that do nothing where they stand are said, and do not stop anything."""

import copy

import pytest

from eulerstack.language import idle
from eulerstack.language.load import check

MAMBA = {"type": "mamba"}
HASH = {"type": "hash", "hash_salt": 5}
HYPER = {"type": "hyper_connection"}
GATED = {"template": "block", "depth_gating": {"capacity": 0.25}}
BLOCK = "layer_templates.block"


SPARSE = {"type": "csa", "m_block": 16, "indexer": {"arch": "relu_mha", "n_heads": 1, "d_per_head": 16}}


def attention(**options):
    return {"type": "attention", "attention": options}


def moe(**options):
    return {"type": "moe", "moe": {"experts": 4, "top_k": 2, **options}}


def ttt(**inner):
    return {"type": "ttt_layer", "ttt": {"inner_model": inner}}


def yarn(**options):
    return {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, **options}


# What is written, and the places of the warnings it gets.
WRITTEN = {
    "a transition of no phases": ({"transition": {"type": "budget_exhausted"}}, ["transition"]),
    "the cache of the last phase": (
        {"execution_modes": [{"name": "a", "max_tokens": 3}, {"name": "b", "max_tokens": 3, "kv_share": False}]},
        ["execution_modes[1].kv_share"],
    ),
    "a spare template": (
        {"layer_templates.spare": {"mixer": MAMBA, "ffn": {"type": "none"}}},
        ["layer_templates.spare"],
    ),
    "an empty override": (
        {"layer_schedule": [{"template": "block", "override": {}}]},
        ["layer_schedule[0].override"],
    ),
    "half an empty override": (
        {"layer_schedule": [{"template": "block", "override": {"attention": {"window": None}, "norm": {}}}]},
        ["layer_schedule[0].override.norm"],
    ),
    "rope of a recurrence": ({f"{BLOCK}.mixer": MAMBA}, ["embedding.positional"]),
    "alibi of a recurrence": ({f"{BLOCK}.mixer": MAMBA, "embedding.positional": "alibi"}, ["embedding.positional"]),
    "alibi of a retention": (
        {f"{BLOCK}.mixer": {"type": "retnet"}, "embedding.positional": "alibi"},
        ["embedding.positional"],
    ),
    "rope of a retention": ({f"{BLOCK}.mixer": {"type": "retnet"}}, []),
    "rope of a retention that does not turn": (
        {f"{BLOCK}.mixer": {"type": "retnet", "retnet": {"rope": False}}},
        ["embedding.positional"],
    ),
    "a share of heads of which a part rotates whole": (
        {f"{BLOCK}.mixer": attention(latent_dim=64, v_head_dim=32), "embedding.rope_fraction": 0.5},
        ["embedding.rope_fraction"],
    ),
    "a share of rebuilt keys": ({f"{BLOCK}.mixer": attention(latent_dim=64), "embedding.rope_fraction": 0.5}, []),
    "chunks of a whole": (
        {f"{BLOCK}.mixer": {"type": "retnet", "retnet": {"chunkwise": False, "chunk_size": 8}}},
        [f"{BLOCK}.mixer.retnet.chunk_size"],
    ),
    "chunks": ({f"{BLOCK}.mixer": {"type": "retnet", "retnet": {"chunk_size": 8}}}, []),
    "a hidden layer of a linear model": (
        {f"{BLOCK}.mixer": ttt(type="linear", hidden=8), "embedding.positional": "none"},
        [f"{BLOCK}.mixer.ttt.inner_model.hidden"],
    ),
    "a linear model": ({f"{BLOCK}.mixer": ttt(type="linear"), "embedding.positional": "none"}, []),
    "a hidden layer": ({f"{BLOCK}.mixer": ttt(hidden=8), "embedding.positional": "none"}, []),
    "a table of positions": ({f"{BLOCK}.mixer": MAMBA, "embedding.positional": "learned"}, []),
    "sliding nowhere": (
        {f"{BLOCK}.mixer": attention(window_mode="sliding")},
        [f"{BLOCK}.mixer.attention.window_mode"],
    ),
    "sliding by override": (
        {
            f"{BLOCK}.mixer": attention(window_mode="sliding"),
            "layer_schedule": [{"template": "block", "override": {"attention": {"window": 8}}}],
        },
        [],
    ),
    "sliding": ({f"{BLOCK}.mixer": attention(window_mode="sliding", window=8)}, []),
    "dilated by one": (
        {f"{BLOCK}.mixer": attention(window_mode="dilated", window=8)},
        [f"{BLOCK}.mixer.attention.window_mode"],
    ),
    "dilated by two": ({f"{BLOCK}.mixer": attention(window_mode="dilated", window=8, window_dilation=2)}, []),
    "no block is ever complete": (
        {f"{BLOCK}.mixer": attention(compression={"type": "hca", "m_block": 129})},
        [f"{BLOCK}.mixer.attention.compression.m_block"],
    ),
    "one block of the whole": ({f"{BLOCK}.mixer": attention(compression={"type": "hca", "m_block": 128})}, []),
    "every block is chosen": (
        {f"{BLOCK}.mixer": attention(compression=SPARSE | {"top_k_blocks": 8})},
        [f"{BLOCK}.mixer.attention.compression.top_k_blocks"],
    ),
    "one block is left out": ({f"{BLOCK}.mixer": attention(compression=SPARSE | {"top_k_blocks": 7})}, []),
    "two widths": ({"model.mlp_ratio": 3, "model.d_ff": 512}, ["model.mlp_ratio"]),
    "two factors": (
        {"embedding.rope_scaling": yarn(attention_factor=1.0, mscale=1.0, mscale_all_dim=1.0)},
        ["embedding.rope_scaling.mscale"],
    ),
    "one factor": ({"embedding.rope_scaling": yarn(mscale=1.0, mscale_all_dim=1.0)}, []),
    "capacity of overflow": ({f"{BLOCK}.ffn": moe(capacity_factor=1.25)}, [f"{BLOCK}.ffn.moe.capacity_factor"]),
    "capacity": ({f"{BLOCK}.ffn": moe(capacity_factor=1.25, capacity_drop_policy="drop")}, []),
    "two affinities": ({f"{BLOCK}.ffn": moe(router="softmax", affinity="sigmoid")}, [f"{BLOCK}.ffn.moe.router"]),
    "one affinity twice": ({f"{BLOCK}.ffn": moe(router="sigmoid", affinity="sigmoid")}, []),
    "losses of coefficient zero": (
        {f"{BLOCK}.ffn": moe(load_balance_coef=0.1, z_loss=0.01), "training_hints.router_aux_loss_coef": 0},
        [f"{BLOCK}.ffn.moe.load_balance_coef", f"{BLOCK}.ffn.moe.z_loss"],
    ),
    "losses of zero": (
        {f"{BLOCK}.ffn": moe(load_balance_coef=0, z_loss=0), "training_hints.router_aux_loss_coef": 0},
        [],
    ),
    "a sequence loss switched off": (
        {f"{BLOCK}.ffn": moe(balance={"sequence_aux_coef": 0.1}), "training_hints.router_aux_loss_coef": 0},
        [f"{BLOCK}.ffn.moe.balance.sequence_aux_coef"],
    ),
    "balance of a hash": (
        {f"{BLOCK}.ffn": moe(routing=HASH, load_balance_coef=0.01)},
        [f"{BLOCK}.ffn.moe.load_balance_coef"],
    ),
    "no balance of a hash": ({f"{BLOCK}.ffn": moe(routing=HASH, load_balance_coef=0)}, []),
    "losses by default": ({f"{BLOCK}.ffn": moe(), "training_hints.router_aux_loss_coef": 0}, []),
    "losses": (
        {f"{BLOCK}.ffn": moe(load_balance_coef=0.1, z_loss=0.01), "training_hints.router_aux_loss_coef": 0.5},
        [],
    ),
    "a rate of nothing": (
        {f"{BLOCK}.ffn": moe(bias_correction={"update_rate": 0.1})},
        [f"{BLOCK}.ffn.moe.bias_correction"],
    ),
    "switched off": ({f"{BLOCK}.ffn": moe(bias_correction={"enabled": False, "update_rate": 0.1})}, []),
    "a retrieval of nothing": (
        {f"{BLOCK}.memory": {"type": "retrieval", "update_at_inference": False, "persistence": "session"}},
        [f"{BLOCK}.memory.update_at_inference"],
    ),
    "a retrieval of what was remembered": ({f"{BLOCK}.memory": {"type": "retrieval", "persistence": "persistent"}}, []),
    "a step of a retrieval": (
        {f"{BLOCK}.memory": {"type": "retrieval", "update_at_inference": True, "inner_lr": 0.1}},
        [f"{BLOCK}.memory.inner_lr"],
    ),
    "a step of a memory that learns": ({f"{BLOCK}.memory": {"type": "associative", "inner_lr": 0.1}}, []),
    "iterations of a free mixing": (
        {f"{BLOCK}.residual": HYPER | {"hyper": {"expand": 2, "mixing": "unconstrained", "sinkhorn_iters": 3}}},
        [f"{BLOCK}.residual.hyper.sinkhorn_iters"],
    ),
    "iterations": ({f"{BLOCK}.residual": HYPER | {"hyper": {"expand": 2, "sinkhorn_iters": 4}}}, []),
    "a gate without its loss": (
        {"layer_schedule": [GATED], "training_hints.router_aux_loss_coef": 0},
        ["layer_schedule[0].depth_gating"],
    ),
    "a gate with its loss": ({"layer_schedule": [GATED]}, []),
    "no gate": (
        {"layer_schedule": [GATED | {"depth_gating": {"enabled": False}}], "training_hints.router_aux_loss_coef": 0},
        [],
    ),
    "quantised by nobody": (
        {"compatibility.quant_aware_training": {"dtype": "fp8"}},
        ["compatibility.quant_aware_training"],
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_does_nothing_is_said_at_its_place(plain, name):
    changes, places = WRITTEN[name]
    data = copy.deepcopy(plain)
    for address, value in changes.items():
        *path, last = address.split(".")
        node = data
        for step in path:
            node = node.setdefault(step, {})
        node[last] = value
    warnings = [w for w in check(data).warnings if not w.what.endswith("]")]  # the others are of realism
    assert [w.where for w in warnings] == places
    assert {w.category for w in warnings} <= {"Warning"}


def test_every_rule_is_listed():
    own = {f for name, f in vars(idle).items() if callable(f) and f.__module__ == idle.__name__ and name[0] != "_"}
    assert own == set(idle.IDLE_RULES)

"""What nothing reads is left out where two presets are compared, and what is read stays."""

import pytest

from eulerstack.cli.unread import UNREAD, read

# A block as it is when nothing reads an option, what makes it read, and the option.
CASES = {
    "model": ({"d_ff": 8, "mlp_ratio": 4.0}, None, {"mlp_ratio"}),
    "embedding": (
        {"positional": "alibi", "rope_theta": 1.0, "rope_fraction": 1.0},
        {"positional": "rope"},
        {"rope_theta", "rope_fraction"},
    ),
    "attention": ({"window_mode": "standard", "window_dilation": 1}, {"window_mode": "nsa"}, {"window_dilation"}),
    "retnet": ({"chunkwise": False, "chunk_size": 64}, {"chunkwise": True}, {"chunk_size"}),
    "inner_model": ({"type": "linear", "hidden": 8}, {"type": "mlp"}, {"hidden"}),
    "moe": (
        {"shared_experts": 0, "shared_d_ff": 8, "capacity_drop_policy": "overflow", "capacity_factor": 1.0},
        {"shared_experts": 1, "capacity_drop_policy": "drop"},
        {"shared_d_ff", "capacity_factor"},
    ),
    "bias_correction": ({"enabled": False, "update_rate": 0.1}, {"enabled": True}, {"update_rate"}),
    "quant_aware_training": ({"enabled": False, "dtype": "fp4"}, {"enabled": True}, {"dtype"}),
    "memory": ({"type": "retrieval", "inner_lr": 0.1}, {"type": "associative"}, {"inner_lr"}),
    "hyper": ({"mixing": "static", "sinkhorn_iters": 20}, {"mixing": "birkhoff"}, {"sinkhorn_iters"}),
}


def test_every_rule_has_a_case():
    assert CASES.keys() == UNREAD.keys()


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_read_is_left_out_wherever_the_block_stands(name):
    block, reading, unread = CASES[name]
    left = {key: value for key, value in block.items() if key not in unread}
    assert read(block, name) == left
    assert read({"above": {name: block}}) == {"above": {name: left}}
    if reading:
        assert read(block | reading, name) == block | reading


def test_a_branch_that_is_called_like_a_block_is_none():
    tree = {"branches": {"moe": {"type": "none"}, "memory": {"retnet": {"chunkwise": False, "chunk_size": 1}}}}
    assert read(tree) == {"branches": {"moe": {"type": "none"}, "memory": {"retnet": {"chunkwise": False}}}}

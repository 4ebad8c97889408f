"""What is predicted of a model is what is built: parameters by name, FLOPs by count, cache and state by bytes."""

from collections import Counter

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.build import build, build_on_meta, plan
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.ir.tensors import buffers, parameters

NONE = {"type": "none"}
MOE = {"type": "moe", "moe": {"experts": 5, "top_k": 2, "d_ff": 13, "shared_experts": 2}}
BIASED = {
    "type": "moe",
    "bias": True,
    "moe": {"experts": 3, "top_k": 1, "d_ff": 11, "bias_correction": {"enabled": True}, "shared_experts": 1},
}
MAMBA1 = {"type": "mamba", "mamba": {"variant": "mamba1", "d_state": 5, "inner_norm": True, "bias": True}}
MAMBA2 = {"type": "mamba", "mamba": {"d_state": 6, "head_dim": 12, "n_groups": 2, "conv_bias": False}}
LAYER_NORM = {"type": "layernorm"}


ATTENTION, WINDOW = {"type": "attention"}, {"type": "attention", "attention": {"window": 7, "latent_dim": 9}}
WIDTHS = ("convolutions", "hourglass")
KEPT = {"update_at_inference": True, "persistence": "persistent"}
MIXINGS = ("birkhoff", "unconstrained", "learned_lowrank")


def hyper(mixing: str) -> dict:
    return {"type": "hyper_connection", "hyper": {"expand": 3, "mixing": mixing}}


def models(preset, template) -> dict[str, dict]:
    """One model for each thing that changes which tensors there are."""
    sandwich = {"position": "sandwich"}
    parallel = {"type": "parallel"}
    return {
        "llama": preset(template(), template(), n_kv_heads=2, head={"tie_weights": False}),
        "gpt2": preset(
            template({"qkv_bias": True, "o_bias": True}, {"type": "mlp", "bias": True}, norm=LAYER_NORM),
            embedding={"positional": "learned"},
        ),
        "latent": preset(template({"latent_dim": 20, "qkv_bias": True, "qk_norm": "rmsnorm"}), n_kv_heads=2),
        "decoupled": preset(
            template({"latent_dim": 20, "q_latent_dim": 11, "qkv_bias": True, "attention_sinks": {}}),
            template({"latent_dim": 9, "qk_rope_dim": 6, "qk_nope_dim": 5, "v_head_dim": 7, "window": 8}),
            template({"attention_sinks": {"n_per_head": 3}}),
            n_kv_heads=2,
        ),
        "memories": preset(
            template(memory={"type": "associative", "params": {"hidden": 10}, "update_at_inference": True}),
            template(NONE, memory={"type": "neural_memory", "params": {"hidden": 7}} | KEPT),
            template(MAMBA2, memory={"type": "retrieval", "params": {"hidden": 9}} | KEPT),
            template(memory={"type": "associative"}),
        ),
        "full norms": preset(template({"qk_norm": "rmsnorm_full"}), n_kv_heads=1, head_dim=14),
        "windows": preset(
            template({"window": 10}),
            template({"window": 8, "window_mode": "dilated", "window_dilation": 3, "latent_dim": 9}),
            template({"window": 6, "window_mode": "nsa"}),
        ),
        "experts": preset(template({}, MOE), template({}, BIASED), template(), d_ff=55),
        "mamba": preset(
            template(MAMBA1, NONE), template(MAMBA2, MOE), template(NONE), embedding={"positional": "none"}
        ),
        "sandwich": preset(template(norm=sandwich), template(norm=sandwich | LAYER_NORM)),
        "parallel": preset(
            template(norm=sandwich, residual=parallel),
            template(MAMBA2, NONE, residual=parallel),
            template(NONE, residual=parallel),
        ),
        "post": preset(template(norm={"position": "post"})),
        "concat": preset(template(), template(MAMBA2), schedule=streams({"type": "concat"})),
        "add": preset(template(), template(MAMBA2), schedule=streams({"type": "add", "projection": False})),
        "gated": preset(template(), template(MAMBA2), schedule=streams({"type": "gated"})),
        "cross attention": preset(
            template(), template(), schedule=streams({"type": "cross_attn", "from": "a", "to": "b"}), head_dim=10
        ),
        "euler": preset(template(MAMBA2, norm=LAYER_NORM), template(), schedule=integrated("ode_euler", "token")),
        "rk4": preset(template(), template(), schedule=integrated("ode_rk4", "hidden")),
        "streams of all mixings": preset(
            template(residual=hyper("birkhoff")),
            template(MAMBA2, MOE, residual=hyper("unconstrained")),
            template(NONE, residual=hyper("learned_lowrank"), norm=sandwich),
        ),
        **{mixing: preset(template(residual=hyper(mixing)), template(residual=hyper(mixing))) for mixing in MIXINGS},
        "narrow": preset(
            template(shape_change={"d_out": 24, "projection": "conv1d"}),
            template(MAMBA2, shape_change={"d_out": 60, "projection": "mlp"}),
        ),
        "narrow and parallel": preset(template(residual=parallel, shape_change={"d_out": 17})),
        "convolutions": preset(template(shape_change={"d_out": 20, "projection": "conv1d"})),
        "hourglass": preset(
            template(shape_change={"d_out": 20, "projection": "mlp"}), template(shape_change={"d_out": 9})
        ),
        "depth": preset(
            template({"window": 7}),
            template(MAMBA2, MOE),
            schedule=[
                {"template": "t0", "depth_gating": {"capacity": 0.25}},
                {"template": "t1", "depth_gating": {"router": "learned_gate"}},
            ],
        ),
        "branches": preset(
            template({"type": "branched", "branched": {"branches": {"a.b": MAMBA2, "c": ATTENTION, "d": WINDOW}}}),
        ),
        "no bias in norms": preset(
            template(norm=LAYER_NORM | {"bias": False}), head={"bias": True, "tie_weights": False}
        ),
    }


def streams(merge: dict) -> list[dict]:
    """A schedule of two streams between plain layers."""
    bodies = {"a": [{"template": "t0", "repeat": 2}], "b": [{"template": "t1"}]}
    parallel = [{"stream": name, "body": body} for name, body in bodies.items()]
    return [{"template": "t0"}, {"parallel": parallel, "merge": merge}, {"template": "t1"}]


def integrated(kind: str, output: str) -> list[dict]:
    return [{"template": "t1"}, {"integrator": {"type": kind, "steps": 2, "body": "t0", "output": output}}]


NAMES = list(models(lambda *a, **k: None, lambda *a, **k: None))


def stored(ir) -> dict[str, tuple]:
    return {tensor.name: tensor.shape for tensor in plan(build_on_meta(runtime_config(ir)))}


@pytest.mark.parametrize("name", NAMES)
def test_predicted_tensors_are_the_built_ones(name, preset, template):
    ir = normalize_to_ir(models(preset, template)[name])
    assert parameters(ir) | buffers(ir) == stored(ir)
    trained = {p for p, _ in build_on_meta(runtime_config(ir)).named_parameters()}
    assert set(parameters(ir)) == trained
    assert costs(ir).total == sum(torch.Size(shape).numel() for shape in parameters(ir).values())


@pytest.mark.parametrize(
    "name",
    ["llama", "gpt2", "latent", "full norms", "experts", "sandwich", "parallel attention", "rk4", *MIXINGS, *WIDTHS],
)
def test_flops_are_what_a_counter_counts(name, preset, template):
    chosen = models(preset, template) | {"parallel attention": preset(template(residual={"type": "parallel"}))}
    ir, length = normalize_to_ir(chosen[name]), 37
    model = build(runtime_config(ir)).eval()
    model.config._attn_implementation = "eager"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(length)[None] % 300, use_cache=False)
    assert counter.get_total_flops() == length * costs(ir, length).flops_per_token


@pytest.mark.parametrize("capacity", [0.25, 0.5, 1])
def test_flops_of_gated_layers_are_those_of_training(capacity, preset, template):
    gated = {"template": "t0", "depth_gating": {"capacity": capacity}}
    ir, length = normalize_to_ir(preset(template(), schedule=[gated, {"template": "t0"}])), 36
    model = build(runtime_config(ir)).train()
    model.config._attn_implementation = "eager"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(length)[None] % 300, use_cache=False)
    assert counter.get_total_flops() == length * costs(ir, length).flops_per_token


def test_flops_of_cross_attention(preset, template):
    """The counter does not see inside torch's fused attention, which the merge uses: 4 heads of 10."""
    ir, length = normalize_to_ir(models(preset, template)["cross attention"]), 37
    model = build(runtime_config(ir)).eval()
    model.config._attn_implementation = "eager"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(length)[None] % 300, use_cache=False)
    assert counter.get_total_flops() == length * (costs(ir, length).flops_per_token - 4 * 4 * 10 * length)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [3, 29])
def test_cache_and_state_are_what_a_forward_pass_leaves(name, length, preset, template):
    ir = normalize_to_ir(models(preset, template)[name])
    with torch.no_grad():
        out = build(runtime_config(ir)).eval()(input_ids=torch.arange(length)[None], use_cache=True)
    bytes_held = sum(t.nbytes for state in out.past_key_values.states if state for t in state.values())
    cost = costs(ir, length)
    assert cost.kv_cache_bytes + cost.state_bytes == bytes_held


def test_active_leaves_out_the_experts_that_rest(preset, template):
    ir = normalize_to_ir(preset(template({}, MOE), d_ff=55))
    cost = costs(ir)
    assert cost.total - cost.active == 3 * 3 * 48 * 13
    assert costs(normalize_to_ir(preset())).active == costs(normalize_to_ir(preset())).total


def test_layers_and_the_rest_add_up(preset, template):
    ir = normalize_to_ir(models(preset, template)["mamba"])
    cost = costs(ir)
    assert cost.embedding == 300 * 48
    assert cost.total == cost.embedding + 48 + sum(layer.total for layer in cost.layers)
    assert cost.flops_per_token == 2 * 300 * 48 + sum(layer.flops_per_token for layer in cost.layers)
    assert cost.kv_cache_bytes == sum(layer.kv_cache_bytes for layer in cost.layers)
    assert [layer.template for layer in cost.layers] == ["t0", "t1", "t2"]


def test_weights_and_buffers_in_bytes(preset, template):
    half = costs(normalize_to_ir(preset(template({}, BIASED), dtype="bfloat16")))
    assert half.buffers == 3
    assert half.weight_bytes == 2 * half.total + 4 * 3
    assert costs(normalize_to_ir(preset(template({}, BIASED)))).weight_bytes == 4 * (half.total + 3)


def test_the_length_is_max_seq_len_unless_given(preset):
    ir = normalize_to_ir(preset())
    assert costs(ir) == costs(ir, 96)
    assert costs(ir, 7).length == 7
    assert costs(ir, 7).kv_cache_bytes * 96 == costs(ir).kv_cache_bytes * 7


def test_a_window_bounds_the_cache_and_the_flops(preset, template):
    ir = normalize_to_ir(preset(template({"window": 10})))
    assert costs(ir, 9).kv_cache_bytes == costs(ir, 96).kv_cache_bytes == 9 * 2 * 48 * 4
    assert costs(ir, 10).flops_per_token == costs(ir, 96).flops_per_token > costs(ir, 9).flops_per_token


def test_counts_of_kinds_do_not_depend_on_their_order(preset, template):
    one, other = preset(template(), template(MAMBA2)), preset(template(MAMBA2), template())
    rows = [Counter(layer.total for layer in costs(normalize_to_ir(p)).layers) for p in (one, other)]
    assert rows[0] == rows[1]

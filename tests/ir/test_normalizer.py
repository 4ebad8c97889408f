"""Every default written out, overrides applied, the schedule expanded."""

import time

import pytest
import yaml

from eulerstack.errors import CompatibilityError, NormalizationError
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.language.hints import InitOptions


def test_a_dict_and_its_file_are_one(catalogue, tmp_path):
    for path in catalogue.values():
        assert normalize_to_ir(yaml.safe_load(path.read_text())) == normalize_to_ir(path) == normalize_to_ir(str(path))


def test_sizes(preset):
    ir = normalize_to_ir(preset(d_model=96, n_heads=6, n_kv_heads=2, mlp_ratio=2.6875))
    assert (ir.model.vocab_size, ir.model.n_kv_heads, ir.model.head_dim, ir.model.d_ff) == (300, 2, 16, 258)
    assert normalize_to_ir(preset(d_model=96, n_heads=6)).model.n_kv_heads == 6
    assert normalize_to_ir(preset(d_model=96, n_heads=6, d_ff=101)).model.d_ff == 101


@pytest.mark.parametrize(("d_model", "ratio", "width"), [(768, 8 / 3, 2048), (48, 2.7, 129), (300, 1.1, 330)])
def test_the_width_of_the_ffn_drops_its_fraction(d_model, ratio, width, preset):
    assert normalize_to_ir(preset(d_model=d_model, n_heads=2, mlp_ratio=ratio)).model.d_ff == width


def test_attention_defaults(preset, template):
    modes = ({}, {"window": 9, "window_mode": "sliding"}, {"window": 9, "window_mode": "dilated"})
    templates = [template(mode) for mode in (*modes, {"window": 9, "window_mode": "nsa"}, {"scale": 0.3})]
    own = [layer.mixer.attention for layer in normalize_to_ir(preset(*templates)).layers]
    assert [a.window_mode for a in own] == ["standard", "standard", "dilated", "nsa", "standard"]
    assert [a.window_dilation for a in own] == [1, 1, 1, 4, 1]
    assert [a.scale for a in own] == [12**-0.5] * 4 + [0.3]


def test_mamba_and_moe_defaults(preset, template):
    mamba1 = template({"type": "mamba", "mamba": {"variant": "mamba1"}}, {"type": "none"})
    mamba2 = template({"type": "mamba", "mamba": {"head_dim": 12}}, {"type": "none"})
    moe = template({}, {"type": "moe", "moe": {"experts": 4, "top_k": 2, "router": "sigmoid", "shared_experts": 1}})
    one, two, three = normalize_to_ir(preset(mamba1, mamba2, moe, d_model=72, d_ff=55)).layers
    assert (one.mixer.mamba.dt_rank, one.mixer.mamba.head_dim) == (5, None)
    assert (two.mixer.mamba.head_dim, two.mixer.mamba.n_groups, two.mixer.mamba.chunk_size) == (12, 1, 256)
    own = three.ffn.moe
    assert (own.affinity, own.d_ff, own.shared_d_ff) == ("sigmoid", 55, 55)
    assert [(x.state.kv_cache, x.state.ssm_state) for x in (one, two, three)] == [(False, True)] * 2 + [(True, False)]


def test_overrides(preset, template):
    local = template({"window": 16, "attn_drop": 0.2}, norm={"type": "layernorm"})
    override = {
        "attention": {"window": None, "attn_drop": 0.0},
        "residual": {"scaling": 0.5},
        "norm": {"type": "rmsnorm", "position": "sandwich"},
        "ffn": {"activation": "geglu"},
    }
    schedule = [{"template": "t0"}, {"template": "t0", "repeat": 2, "override": override}, {"template": "t0"}]
    plain, first, second, last = normalize_to_ir(preset(local, schedule=schedule)).layers
    assert (plain.mixer.attention.window, plain.norm.type, plain.norm.bias) == (16, "layernorm", True)
    own = first.mixer.attention
    assert (own.window, own.attn_drop, first.residual.scaling) == (None, 0.0, 0.5)
    assert (first.norm.type, first.norm.position, first.norm.bias) == ("rmsnorm", "sandwich", False)
    assert first.ffn.activation == "geglu"
    assert (second.mixer, second.ffn, second.index, second.entry) == (first.mixer, first.ffn, 2, 1)
    assert last.mixer == plain.mixer


def test_an_override_of_one_key_leaves_the_others(preset, template):
    schedule = [{"template": "t0", "override": {"attention": {"attn_drop": 0.3}}}]
    own = normalize_to_ir(preset(template({"window": 16}), schedule=schedule)).layers[0].mixer.attention
    assert (own.window, own.attn_drop) == (16, 0.3)


@pytest.mark.parametrize(
    ("positions", "given", "wanted"),
    [(("pre", "post"), None, True), (("post", "post"), None, False), (("post", "post"), True, True)],
)
def test_the_final_norm(positions, given, wanted, preset, template):
    templates = [template(norm={"position": position}) for position in positions]
    head = {} if given is None else {"final_norm": given}
    assert normalize_to_ir(preset(*templates, head=head)).head.final_norm is wanted


def test_the_head_decides_on_ties(preset):
    assert normalize_to_ir(preset(head={"tie_weights": False})).embedding.tie_word_embeddings is False


def test_hints_and_scaling(preset):
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
    ir = normalize_to_ir(preset(embedding={"rope_scaling": scaling}))
    assert ir.training_hints.init == InitOptions(std=0.02, scheme="normal")
    rope = ir.embedding.rope_scaling
    assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (32.0, 1.0, True)


def test_streams_and_integrators_keep_everything(preset, template):
    streams = [
        {"stream": "a", "body": [{"template": "t0", "repeat": 2}, {"template": "t1"}]},
        {"stream": "b", "body": [{"template": "t1"}]},
    ]
    schedule = [
        {"template": "t0", "depth_gating": {"capacity": 0.25}},
        {"parallel": streams, "merge": {"type": "cross_attn", "from": "a", "to": "b"}},
        {"integrator": {"type": "ode_rk4", "steps": 3, "body": "t1"}},
        {"template": "t1", "depth_gating": {"enabled": False}},
    ]
    ir = normalize_to_ir(preset(template(), template({"window": 5}), schedule=schedule))
    assert [layer.template for layer in ir.layers] == ["t0", "t0", "t0", "t1", "t1", "t1", "t1"]
    assert [layer.entry for layer in ir.layers] == [0, 1, 1, 1, 1, 2, 3]
    gated, parallel, integrator, plain = ir.schedule
    assert [(s.stream, s.layers) for s in parallel.streams] == [("a", (1, 2, 3)), ("b", (4,))]
    assert (parallel.merge.from_, parallel.merge.to) == ("a", "b")
    assert (integrator.layer, integrator.options.steps, integrator.options.output) == (5, 3, "token")
    assert (gated.layers, plain.layers) == ((0,), (6,))
    assert ir.layers[0].depth_gating.capacity == 0.25
    assert ir.layers[6].depth_gating is None


def test_the_layer_of_prediction_heads_is_kept(preset, template):
    head = {"type": "causal_lm_mtp", "mtp": {"head_template": "t1"}}
    schedule = [{"template": "t0", "repeat": 3}]
    ir = normalize_to_ir(preset(template(), template({"window": 5}), schedule=schedule, head=head))
    assert (ir.mtp_layer.template, ir.mtp_layer.index, ir.mtp_layer.entry) == ("t1", 3, -1)


def test_ten_thousand_layers_and_no_more(preset):
    entries = [{"template": "t0", "repeat": 5000}, {"template": "t0", "repeat": 5000}]
    assert len(normalize_to_ir(preset(schedule=entries)).layers) == 10_000
    start = time.monotonic()
    with pytest.raises(NormalizationError, match=r"layer_schedule\[2\].*10,000"):
        normalize_to_ir(preset(schedule=[*entries, {"template": "t0", "repeat": 10**12}]))
    assert time.monotonic() - start < 5


def test_the_bound_is_placed_in_the_file(preset, tmp_path):
    file = tmp_path / "deep.yml"
    file.write_text(yaml.safe_dump(preset(schedule=[{"template": "t0", "repeat": 10**9}]), sort_keys=False))
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "repeat: 1000000000" in text)
    with pytest.raises(NormalizationError) as error:
        normalize_to_ir(file)
    assert error.value.problems[0].place == f"{file}:{line}:11"


def test_errors_of_the_language_pass_through(preset):
    with pytest.raises(CompatibilityError):
        normalize_to_ir(preset(d_model=50, n_heads=4))

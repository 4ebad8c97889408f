import json

import pytest

from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir


def test_layers_and_figures(run, own):
    said = run("explain", "-p", "tiny")
    assert (said.status, said.err) == (0, "")
    cost = costs(normalize_to_ir(own / "presets" / "tiny.yml"))
    lines = said.out.splitlines()
    assert lines[0] == "tiny: 3 layers of 128, vocabulary 300, bfloat16"
    assert lines[1].split() == ["0-1", "state:", "mamba2,", "moe", "2", "of", "4"]
    assert lines[2].split() == ["2", "attention:", "attention", "window", "16,", "gated_mlp"]
    assert f"({cost.total:,})" in said.out
    assert [line.split()[0] for line in lines[3:]] == [
        "parameters",
        "active",
        "embedding",
        "weights",
        "forward",
        "KV",
        "state",
    ]


def test_an_override_is_shown_as_a_kind_of_its_own(run, preset):
    line = "  - {template: attention}\n"
    preset("wide", line, line + "  - {template: attention, override: {attention: {window: null}}}\n")
    lines = run("explain", "-p", "wide").out.splitlines()
    assert lines[2].strip() == "2  attention: attention window 16, gated_mlp"
    assert lines[3].strip() == "3  attention: attention, gated_mlp"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("{norm: {type: layernorm}}", "16, gated_mlp (norm.type layernorm, norm.bias true)"),
        ("{norm: {position: sandwich}}", "16, gated_mlp (norm.position sandwich)"),
        ("{residual: {scaling: 0.5}}", "16, gated_mlp (residual.scaling 0.5)"),
        ("{ffn: {activation: geglu}}", "16, gated_mlp (ffn.activation geglu)"),
        ("{attention: {window: 8, attn_drop: 0.25}}", "8, gated_mlp (mixer.attention.attn_drop 0.25)"),
        ("{attention: {window: 16}}", None),
    ],
)
def test_every_override_is_said(run, preset, override, said):
    line = "  - {template: attention}\n"
    preset("changed", line, f"{line}  - {{template: attention, override: {override}}}\n{line}")
    lines = [line.strip() for line in run("explain", "-p", "changed").out.splitlines()]
    plain = "attention: attention window 16, gated_mlp"
    if said is None:
        assert lines[2] == f"2-4  {plain}"
    else:
        assert lines[2:5] == [f"2  {plain}", f"3  attention: attention window {said}", f"4  {plain}"]


def test_json(run, own):
    said = run("explain", "-p", "tiny", "--json", "--length", "40")
    assert (said.status, said.err) == (0, "")
    figures = json.loads(said.out)
    assert set(figures) == {"name", "layers", "params", "flops_per_token", "kv_cache_bytes", "state_bytes"}
    assert set(figures["params"]) == {"total", "active", "embedding"}
    cost = costs(normalize_to_ir(own / "presets" / "tiny.yml"), 40)
    assert figures["name"] == "tiny"
    assert figures["layers"] == 3
    assert figures["params"] == {"total": cost.total, "active": cost.active, "embedding": 300 * 128}
    assert figures["flops_per_token"] == cost.flops_per_token
    assert (figures["kv_cache_bytes"], figures["state_bytes"]) == (cost.kv_cache_bytes, cost.state_bytes)


def test_json_stays_json_beside_a_warning(run, preset):
    preset("far", "d_ff: 48}", "d_ff: 48, target_params: 9000000}")
    assert json.loads(run("explain", "-p", "far", "--json").out)["name"] == "tiny"


def test_length_decides_what_depends_on_it(run, preset):
    preset("wide", "{window: 16}", "{window: null}")
    short, long = (json.loads(run("explain", "-p", "wide", "--json", "--length", n).out) for n in (10, 20))
    assert long["kv_cache_bytes"] == 2 * short["kv_cache_bytes"]
    assert long["flops_per_token"] > short["flops_per_token"]
    assert (long["params"], long["state_bytes"]) == (short["params"], short["state_bytes"])
    by_default = json.loads(run("explain", "-p", "wide", "--json").out)
    assert by_default["kv_cache_bytes"] == 64 // 10 * short["kv_cache_bytes"] + short["kv_cache_bytes"] * 4 // 10


@pytest.mark.parametrize("length", ["0", "-1", "1.5", "many"])
def test_a_length_is_a_whole_number_of_tokens(run, own, length):
    assert run("explain", "-p", "tiny", "--length", length).status == 2


def test_what_is_not_built_yet_is_refused_with_its_place(run, refused, unbuilt):
    path, place, name = unbuilt
    found = refused(run("explain", "-p", path))
    assert list(found) == [f"{path}:{place}"]
    assert found[f"{path}:{place}"].endswith(f": {name} is not built yet")

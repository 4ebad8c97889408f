"""What `explain` prints of the preset `tiny`, by hand.

Width 128, two heads of 64 and one of keys and values, vocabulary 300, 64 tokens, bfloat16.

state      256 channels in 4 heads, 256 + 2 x 8 = 272 of them convolved: in_proj 128 (256 + 272 + 4) = 68,096, taps
           272 x 4 and biases 272, out_proj 32,768, three numbers a head 12, norm 256: 102,492. Experts 4 x 3 x 16 x 128
           and a router of 512: 25,088, of which two experts, 12,288, rest. Norms 256. Together 127,836.
attention  q and o 16,384 each, k and v 8,192 each; FFN 3 x 48 x 128 = 18,432; norms 256. Together 67,840.
"""

import json

import pytest

from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir

DIAGRAM = """\
tiny: 3 layers of 128, vocabulary 300, bfloat16

  tokens
  |
  embedding                   300 x 128, rope
  |
  | state x 2                           mamba2, moe 2 of 4
  | attention                           attention window 16, gated_mlp
  |
  final norm                  rmsnorm
  head                        128 x 300, tied to the embedding
  |
  logits

state                         2 layers: 0-1
  |-> rmsnorm
  |   mamba2                  256 channels, d_state 8, d_conv 4, expand 2, head_dim 64, n_groups 1,
  |                           chunk_size 256
  |<- add
  |-> rmsnorm
  |   moe                     experts 4, top_k 2, affinity softmax, d_ff 16, swiglu
  |<- add

attention                     1 layer: 2
  |-> rmsnorm
  |   attention               2 heads of 64, 1 of keys and values, window 16
  |<- add
  |-> rmsnorm
  |   gated_mlp               d_ff 48, swiglu
  |<- add

"""
COSTS = [
    {"name": "embedding", "layers": False, "count": 1, "params": 38_400, "active": 38_400}
    | {"flops_per_token": 0, "kv_cache_bytes": 0, "state_bytes": 0},
    {"name": "state", "layers": True, "count": 2, "params": 255_672, "active": 231_096}
    # 2 x 100,864 of projections, 2 x 4 x 272, 5 x 256 x 8 + 2 x 256 + 4; router and two experts 2 x 128 (4 + 96)
    | {"flops_per_token": 2 * (214_660 + 25_600), "kv_cache_bytes": 0}
    # 4 x 256 x 8 in float32, 2 x 272 x 3 of the convolution
    | {"state_bytes": 2 * (8192 + 1632)},
    {"name": "attention", "layers": True, "count": 1, "params": 67_840, "active": 67_840}
    # 2 x 49,152 of projections, 2 x 2 x 128 of each of 16 keys, 2 x 18,432
    | {"flops_per_token": 98_304 + 8_192 + 36_864, "kv_cache_bytes": 15 * 256, "state_bytes": 0},
    {"name": "head", "layers": False, "count": 1, "params": 128, "active": 128}
    | {"flops_per_token": 76_800, "kv_cache_bytes": 0, "state_bytes": 0},
]


def test_the_diagram_and_what_follows_it(run, own):
    said = run("explain", "-p", "tiny")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith(DIAGRAM)
    words = [line.split()[0] for line in said.out.removeprefix(DIAGRAM).splitlines() if line[:1].strip()]
    table = ["kind", "embedding", "state", "attention", "head", "total"]
    totals = ["parameters", "active", "embedding", "weights", "forward", "KV", "state"]
    assert words == ["dims", *table, *totals, "memory", "training", "serving"]
    assert "parameters  362 K (362,040)" in said.out


def test_json(run, own):
    said = run("explain", "-p", "tiny", "--json", "--length", "40")
    assert (said.status, said.err) == (0, "")
    figures = json.loads(said.out)
    cost = costs(normalize_to_ir(own / "presets" / "tiny.yml"), 40)
    assert figures["name"] == "tiny"
    assert figures["layers"] == 3
    assert figures["params"] == {"total": cost.total, "active": cost.active, "embedding": 300 * 128}
    assert figures["flops_per_token"] == cost.flops_per_token
    assert (figures["kv_cache_bytes"], figures["state_bytes"]) == (cost.kv_cache_bytes, cost.state_bytes)
    assert (figures["length"], figures["batch"]) == (40, 1)
    assert figures["dims"]["head_dim"] == 64
    assert figures["schedule"] == [{"times": 2, "layer": "state"}, {"times": 1, "layer": "attention"}]


def test_costs_by_kind_by_hand(run, own):
    figures = json.loads(run("explain", "-p", "tiny", "--json").out)
    assert figures["costs"] == COSTS
    assert figures["params"]["total"] == 362_040
    assert figures["flops_per_token"] == 480_520 + 143_360 + 76_800


def test_memory_by_hand(run, own):
    """Two bytes of a weight and of its gradient, twelve of AdamW; three layers read 64 tokens of 2 x 128 bytes each."""
    figures = json.loads(run("explain", "-p", "tiny", "--json", "--batch", "3").out)
    weights, optimizer, inputs = 2 * 362_040, 12 * 362_040, 3 * 3 * 64 * 256
    assert figures["training_bytes"] == {
        "weights": weights,
        "gradients": weights,
        "optimizer": optimizer,
        "inputs_of_layers": inputs,
        "total": 2 * weights + optimizer + inputs,
    }
    cache, state = 3 * 3840, 3 * 19_648
    serving = {"weights": weights, "kv_cache": cache, "state": state, "total": weights + cache + state}
    assert figures["serving_bytes"] == serving


def test_memory_in_float32_has_no_master_copy(run, preset):
    preset("wide", "d_ff: 48}", "d_ff: 48, dtype: float32}")
    found = json.loads(run("explain", "-p", "wide", "--json").out)["training_bytes"]
    assert (found["weights"], found["gradients"], found["optimizer"]) == (4 * 362_040, 4 * 362_040, 8 * 362_040)
    assert "AdamW has two moments in" in run("explain", "-p", "wide").out


def test_one_layer_is_one(run, preset):
    preset("single", "  - {template: state, repeat: 2}\n", "")
    said = run("explain", "-p", "single").out
    assert said.startswith("tiny: 1 layer of 128, ")
    assert "1 layer: 0\n" in said


def test_brief_is_one_sentence(run, own):
    said = run("explain", "-p", "tiny", "--brief").out
    assert said == "362 K parameters (362,040), 337.5 K active; KV cache 3.75 KiB at 64 tokens (its limit); " + (
        "state 19.19 KiB.\n"
    )


def test_json_stays_json_beside_a_warning(run, preset):
    preset("far", "d_ff: 48}", "d_ff: 48, target_params: 9000000}")
    assert json.loads(run("explain", "-p", "far", "--json").out)["name"] == "tiny"


def test_length_decides_what_depends_on_it(run, preset):
    preset("wide", "{window: 16}", "{window: null}")
    short, long = (json.loads(run("explain", "-p", "wide", "--json", "--length", n).out) for n in (10, 20))
    assert long["kv_cache_bytes"] == 2 * short["kv_cache_bytes"]
    assert long["flops_per_token"] > short["flops_per_token"]
    assert (long["params"], long["state_bytes"]) == (short["params"], short["state_bytes"])
    assert long["training_bytes"]["inputs_of_layers"] == 2 * short["training_bytes"]["inputs_of_layers"]
    by_default = json.loads(run("explain", "-p", "wide", "--json").out)
    assert by_default["kv_cache_bytes"] == 64 // 10 * short["kv_cache_bytes"] + short["kv_cache_bytes"] * 4 // 10


@pytest.mark.parametrize("option", ["--length", "--batch"])
@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many"])
def test_counts_are_whole_numbers(run, own, option, number):
    assert run("explain", "-p", "tiny", option, number).status == 2


def test_what_is_not_built_yet_is_refused_with_its_place(run, refused, unbuilt):
    path, place, name = unbuilt
    found = refused(run("explain", "-p", path))
    assert list(found) == [f"{path}:{place}"]
    assert found[f"{path}:{place}"].endswith(f": {name} is not built yet")

import json

import pytest

from eulerstack.paths import catalogue_dir

CATALOGUE = sorted(path.stem for path in catalogue_dir().glob("*.yml"))
NEIGHBOURS = list(zip(CATALOGUE, CATALOGUE[1:] + CATALOGUE[:1], strict=True))[::3]
LINE = "  - {template: attention}\n"


def differences(run, a, b) -> dict:
    said = run("diff", a, b, "--json")
    assert (said.status, said.err) == (0, "")
    return json.loads(said.out)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_preset_does_not_differ_from_itself(run, name):
    found = differences(run, name, name)
    assert (found["same"], found["blocks"], found["layers"], found["schedule"]) == (True, {}, [], None)
    assert {row["ratio"] for row in found["costs"].values()} <= {1.0, None}


@pytest.mark.parametrize(("a", "b"), NEIGHBOURS)
def test_the_other_way_round_everything_is_turned(run, a, b):
    there, back = differences(run, a, b), differences(run, b, a)
    assert there["same"] is back["same"] is False
    assert there["costs"].keys() == back["costs"].keys()
    for key, row in there["costs"].items():
        assert (row["a"], row["b"]) == (back["costs"][key]["b"], back["costs"][key]["a"])
        if row["ratio"] and back["costs"][key]["ratio"]:
            assert row["ratio"] * back["costs"][key]["ratio"] == pytest.approx(1)
    assert as_set(there, "a", "b") == as_set(back, "b", "a")


def as_set(found: dict, a: str, b: str) -> set:
    rows = {(name, c["key"], str(c[a]), str(c[b])) for name, changes in found["blocks"].items() for c in changes}
    for pair in found["layers"]:
        rows.add((pair[a], pair[b], pair["words"]))
        rows |= {(pair[a], pair[b], c["key"], str(c[a]), str(c[b])) for c in pair["changes"]}
    return rows | ({(found["schedule"][a], found["schedule"][b])} if found["schedule"] else set())


@pytest.mark.parametrize(("a", "b"), NEIGHBOURS)
def test_it_fits_on_a_page(run, a, b):
    lines = run("diff", a, b).out.splitlines()
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines if line != line.rstrip()]


def test_figures_by_hand(run, preset):
    """`far` sees all 64 keys instead of 16: 48 more of 2 x 2 x 128 FLOPs, 64 tokens in the cache instead of 15. At
    4,096 tokens, beyond the limit of both, it is 4,080 and 4,096."""
    preset("far", "{window: 16}", "{window: null}")
    found = differences(run, "tiny", "far")
    assert found["layers"] == [
        {
            "a": "attention",
            "b": "attention",
            "changes": [{"key": "mixer.attention.window", "a": 16, "b": None}],
            "words": None,
        }
    ]
    costs = found["costs"]
    assert costs["params"] == {"a": 362_040, "b": 362_040, "ratio": 1.0}
    assert costs["flops_per_token"]["a"] == 700_680
    assert costs["flops_per_token"]["b"] == 700_680 + 4_080 * 512
    assert costs["kv_cache_bytes"] == {"a": 15 * 256, "b": 4096 * 256, "ratio": 4096 / 15}
    assert costs["kv_cache_bytes_at_limit"] == {"a": 15 * 256, "b": 64 * 256, "ratio": 64 / 15}
    assert costs["layers"] == {"a": 3, "b": 3, "ratio": 1.0}


def test_what_it_prints(run, preset):
    preset("far", "{window: 16}", "{window: null}")
    lines = [" ".join(line.split()) for line in run("diff", "tiny", "far").out.splitlines()]
    assert lines[:6] == ["A tiny", "B tiny", "", "layers", "attention", "mixer.attention.window 16 -"]
    assert lines[-1] == "both A and B end before 4,096 tokens: figures at that length only compare"
    assert "KV cache at the limit 3.75 KiB 16 KiB 4.27" in lines
    assert "no difference in structure" in run("diff", "tiny", "tiny").out


CHANGES = {
    "d_ff: 48}": ("d_ff: 48, norm_eps: 1e-6}", {"model": [("norm_eps", 1e-05, 1e-06)]}),
    "positional: rope": (
        "positional: rope, rope_scaling: {type: linear, factor: 2.0}",
        {"embedding": [("rope_scaling.type", None, "linear"), ("rope_scaling.factor", None, 2.0)]},
    ),
    "head: {type: causal_lm}": (
        "head: {type: causal_lm, tie_weights: false}",
        {"head": [("tie_weights", True, False)]},
    ),
    "head: {type: causal_lm}\n": (
        "head: {type: causal_lm}\ntraining_hints: {seed: 7}\n",
        {"training_hints": [("seed", 42, 7)]},
    ),
    "name: tiny": ("name: other", {}),
}


@pytest.mark.parametrize("old", CHANGES)
def test_blocks_key_by_key(run, preset, old):
    new, expected = CHANGES[old]
    preset("changed", old, new)
    found = differences(run, "tiny", "changed")
    blocks = {name: [(c["key"], c["a"], c["b"]) for c in rows] for name, rows in found["blocks"].items()}
    assert blocks == expected
    assert (found["layers"], found["schedule"], found["same"]) == ([], None, not expected)


def test_options_that_nothing_reads_make_no_difference(run, preset):
    """Widths of shared experts where there are none, a capacity where no token is dropped."""
    preset("wider", "top_k: 2, d_ff: 16}", "top_k: 2, d_ff: 20, router: sigmoid, affinity: softmax}")
    (pair,) = differences(run, "tiny", "wider")["layers"]
    assert [(c["key"], c["a"], c["b"]) for c in pair["changes"]] == [("ffn.moe.d_ff", 16, 20)]
    preset("shared", "top_k: 2, d_ff: 16}", "top_k: 2, d_ff: 16, shared_experts: 1, capacity_factor: 2.0}")
    (pair,) = differences(run, "tiny", "shared")["layers"]
    assert [(c["key"], c["a"], c["b"]) for c in pair["changes"]] == [
        ("ffn.moe.shared_experts", 0, 1),
        ("ffn.moe.shared_d_ff", None, 16),
    ]


def test_a_kind_that_one_side_lacks_and_the_schedules(run, preset):
    preset(
        "more",
        LINE,
        "  - {template: attention, repeat: 2}\n  - {template: attention, override: {norm: {position: post}}}\n",
    )
    found = differences(run, "tiny", "more")
    assert [(pair["a"], pair["b"], pair["words"]) for pair in found["layers"]] == [
        ("attention", "attention", None),
        (None, "attention.1", "attention window 16, gated_mlp, 1 layer"),
    ]
    assert found["layers"][0]["changes"] == [{"key": "layers", "a": 1, "b": 2}]
    assert found["schedule"] == {"a": "2 x state, attention", "b": "2 x state, 2 x attention, attention.1"}


def test_a_renamed_template_is_the_same_kind_and_schedule(run, preset):
    path = preset("renamed")
    path.write_text(
        path.read_text().replace("  attention:\n", "  look:\n").replace("template: attention", "template: look")
    )
    found = differences(run, "tiny", "renamed")
    assert [pair["changes"] for pair in found["layers"]] == [[{"key": "template", "a": "attention", "b": "look"}]]
    assert found["schedule"] is None


def test_a_name_that_looks_like_a_schedule_is_in_quotes(run, preset):
    path = preset("odd", "{template: state, repeat: 2}", '{template: "2 x a, b", repeat: 2}')
    path.write_text(path.read_text().replace("  state:\n", '  "2 x a, b":\n'))
    preset("more", LINE, LINE * 2)
    assert differences(run, "odd", "more")["schedule"]["a"] == "2 x '2 x a, b', attention"


def test_another_mixer_is_said_in_words(run, preset):
    preset("mamba", "mixer: {type: attention, attention: {window: 16}}", "mixer: {type: hyena}")
    (pair,) = differences(run, "tiny", "mamba")["layers"]
    assert [(c["key"], c["a"], c["b"]) for c in pair["changes"]] == [
        (
            "mixer",
            "attention, 2 heads of 64, 1 of keys and values, window 16",
            "hyena, depth 2, filter_hidden 64, short_conv 3",
        )
    ]


@pytest.mark.parametrize("arguments", [("tiny", "tinny"), ("tinny", "tiny"), ("presets", "tiny"), ("", "tiny")])
def test_a_bad_name_gets_three_lines(run, own, arguments):
    said = run("diff", *arguments)
    assert (said.status, said.out) == (1, "")
    assert len(said.problems) == 1


def test_two_names_are_needed(run, own):
    assert run("diff", "tiny").status == 2
    assert run("diff", "tiny", "tiny", "tiny").status == 2


def test_what_is_not_built_yet_is_refused(run, refused, unbuilt):
    path, place, name = unbuilt
    found = refused(run("diff", "tiny", path))
    assert found[f"{path}:{place}"].endswith(f": {name} is not built yet")

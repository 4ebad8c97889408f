"""Properties of the reading aids over every preset there is, and the odd shapes of a schedule."""

import re
from functools import cache
from pathlib import Path

import pytest

from eulerstack.cli.diagram import Diagram
from eulerstack.cli.explain_command import _described
from eulerstack.cli.folding import unfold
from eulerstack.cli.kinds import kinds_of
from eulerstack.cli.ledger import ledger, total
from eulerstack.compiler.runtime import payload_of
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.paths import catalogue_dir

FOLDERS = (catalogue_dir(), catalogue_dir().parent / "examples" / "primitives")
PRESETS = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.yml"))}
every = pytest.mark.parametrize("name", PRESETS)


@cache
def known(path: Path) -> tuple[Diagram, object]:
    ir = normalize_to_ir(path)
    return Diagram(ir, kinds_of(ir)), costs(ir)


def layers_in(tree: list[dict]) -> int:
    """Layers of a folded schedule; an integrator is one."""
    found = 0
    for node in tree:
        inner = [node["group"]] if "group" in node else list(node.get("streams", {}).values())
        found += node["times"] * (sum(map(layers_in, inner)) if inner else 1)
    return found


@every
def test_folded_counts_sum_to_the_layers(name):
    diagram, _ = known(PRESETS[name])
    assert layers_in(diagram.tree()) == len(diagram.ir.layers)
    assert sum(len(kind.layers) for kind in diagram.kinds) == len(diagram.ir.layers)
    assert unfold(diagram.folds) == list(diagram._items())


@every
def test_every_layer_is_of_one_kind_and_like_it(name):
    diagram, _ = known(PRESETS[name])
    places = [index for kind in diagram.kinds for index in kind.layers]
    assert sorted(places) == list(range(len(diagram.ir.layers)))
    for kind in diagram.kinds:
        for layer in (diagram.ir.layers[index] for index in kind.layers):
            assert (layer.template, layer.mixer, layer.ffn) == (kind.layer.template, kind.layer.mixer, kind.layer.ffn)
    names = [kind.name for kind in diagram.kinds]
    assert len(names) == len(set(names))


@every
def test_kinds_are_called_as_in_config_json(name):
    diagram, _ = known(PRESETS[name])
    payload = payload_of(diagram.ir)
    names = {index: kind.name for kind in diagram.kinds for index in kind.layers}
    assert [names[index] for index in range(len(names))] == payload["block_pattern"]
    assert [kind.name for kind in diagram.kinds] == list(payload["blocks"])


@every
def test_costs_by_kind_sum_to_the_totals(name):
    diagram, cost = known(PRESETS[name])
    rows = ledger(diagram.ir, diagram.kinds, cost)
    summed = total(rows, len(diagram.ir.layers))
    assert (summed.params, summed.active) == (cost.total, cost.active)
    assert summed.flops_per_token == cost.flops_per_token
    assert (summed.kv_cache_bytes, summed.state_bytes) == (cost.kv_cache_bytes, cost.state_bytes)
    assert sum(row.count for row in rows if row.layers) == len(diagram.ir.layers)


@every
def test_it_fits_on_a_page_of_plain_letters_and_draws_every_kind(name):
    diagram, cost = known(PRESETS[name])
    lines = _described(diagram, cost, 1)
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines if line != line.rstrip()]
    assert "\n".join(lines).isascii()
    for kind in diagram.kinds:
        assert any(
            re.match(rf"{re.escape(kind.name)} +\d+ layers?: |{re.escape(kind.name)} +layers of", s) for s in lines
        )


SCHEDULE = "  - {template: state, repeat: 2}\n  - {template: attention}\n"
STREAMS = """\
  - parallel:
      - {stream: near, body: [{template: attention, repeat: 2}]}
      - {stream: far, body: [{template: state, repeat: 3}]}
    merge: {type: cross_attn, from: far, to: near}
  - integrator: {type: ode_rk4, steps: 2, body: attention}
"""


def drawn(path: Path) -> list[str]:
    """The schedule in the diagram: names and brackets, without what stands beside them."""
    lines = Diagram(ir := normalize_to_ir(path), kinds_of(ir)).lines()
    return [line.split("   ")[0].rstrip() for line in lines if line.startswith("  | ")]


def test_streams_and_integrators_are_drawn(preset):
    assert drawn(preset("streams", SCHEDULE, SCHEDULE + STREAMS)) == [
        "  | state x 2",
        "  | attention",
        "  | +-- 2 streams that read the same input",
        "  | |-> near",
        "  | |  attention x 2",
        "  | |-> far",
        "  | |  state x 3",
        "  | +-- merge cross_attn, near reads far, projection",
        "  | +-- ode_rk4, 2 steps, 8 evaluations with the same weights",
        "  | |  attention",
        "  | +-- rmsnorm",
    ]


def test_a_group_that_repeats_is_drawn_once(preset):
    assert drawn(preset("groups", SCHEDULE, SCHEDULE * 4)) == [
        "  | +-- 4 times",
        "  | |  state x 2",
        "  | |  attention",
        "  | +--",
    ]


def test_entries_that_are_alike_repeat_too_and_others_do_not(preset):
    assert drawn(preset("twice", SCHEDULE, STREAMS * 2))[0] == "  | +-- 2 times"
    other = STREAMS.replace("steps: 2", "steps: 3")
    assert "times" not in "".join(drawn(preset("others", SCHEDULE, STREAMS + other)))


OVERRIDES = {
    "{norm: {type: layernorm}}": ["norm.type layernorm, norm.bias true", "|-> layernorm"],
    "{norm: {position: sandwich}}": ["norm.position sandwich", "of what the branch adds"],
    "{norm: {position: post}}": ["norm.position post", "o   rmsnorm                 of the stream"],
    "{residual: {scaling: 0.5}}": ["residual.scaling 0.5", "|<- add                     scaling 0.5"],
    "{ffn: {activation: geglu}}": ["ffn.activation geglu", "d_ff 48, geglu"],
    "{attention: {window: null}}": ["mixer.attention.window null", "1 of keys and values, global"],
    "{attention: {attn_drop: 0.25}}": ["mixer.attention.attn_drop 0.25", "keys and values, attn_drop 0.25, window 16"],
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_an_override_makes_a_kind_of_its_own(run, preset, override):
    line = "  - {template: attention}\n"
    path = preset("changed", line, f"{line}  - {{template: attention, override: {override}}}\n")
    assert drawn(path) == ["  | state x 2", "  | attention", "  | attention.1"]
    text = run("explain", "-p", path).out
    difference, own = OVERRIDES[override]
    assert f"  differs in                  {difference}\n" in text
    assert own in text[text.index("\nattention.1 ") :]


def test_an_override_that_says_the_same_makes_none(preset):
    line = "  - {template: attention}\n"
    same = f"{line}  - {{template: attention, override: {{attention: {{window: 16}}}}}}\n"
    assert drawn(preset("same", line, same)) == ["  | state x 2", "  | attention x 2"]


def test_no_kind_takes_the_name_of_a_template(preset):
    line = "  - {template: attention}\n"
    more = (
        f"{line}  - {{template: attention, override: {{residual: {{scaling: 0.5}}}}}}\n  - {{template: attention.1}}\n"
    )
    path = preset("named", line, more)
    text = path.read_text().replace(
        "  state:\n", "  attention.1: {mixer: {type: attention}, ffn: {type: none}}\n  state:\n"
    )
    path.write_text(text)
    assert drawn(path)[1:] == ["  | attention", "  | attention.2", "  | attention.1"]


def test_long_and_odd_names_stay_on_the_page(run, preset):
    path = preset("odd")
    path.write_text(path.read_text().replace("attention:\n    mixer", f"{'long' * 30}:\n    mixer"))
    path.write_text(path.read_text().replace("template: attention", f"template: {'long' * 30}"))
    path.write_text(
        path.read_text().replace("  state:", '  "two\\nlines":').replace("template: state", 'template: "two\\nlines"')
    )
    said = run("explain", "-p", path)
    assert said.status == 0
    assert max(map(len, said.out.splitlines())) <= 100
    assert "'two\\nlines' x 2" in said.out

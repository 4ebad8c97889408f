"""The IR as text and back, its digest, and the layers of a schedule entry."""

import dataclasses
import json
from pathlib import Path

import pytest

from eulerstack.errors import NormalizationError
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.ir.types import digest, from_dict, from_json, layers_of, to_dict, to_json

EVERYTHING = Path(__file__).parents[1] / "language" / "valid" / "everything.yml"


def test_canonical_json_goes_both_ways(catalogue):
    for path in [EVERYTHING, *catalogue.values()]:
        ir = normalize_to_ir(path)
        text = to_json(ir)
        assert from_json(text) == ir
        assert to_json(from_json(text)) == text
        assert from_dict(to_dict(ir)) == ir
        assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n" == text


def test_nodes_are_frozen(preset):
    ir = normalize_to_ir(preset())
    for node, key in ((ir, "name"), (ir.model, "d_model"), (ir.layers[0], "index"), (ir.layers[0].mixer, "type")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(node, key, 1)


def test_the_digest_is_of_the_meaning(preset):
    plain = digest(normalize_to_ir(preset(d_model=48, n_heads=4)))
    assert digest(normalize_to_ir(preset(d_model=48, n_heads=4, n_kv_heads=4, head_dim=12, mlp_ratio=4.0))) == plain
    assert digest(normalize_to_ir(preset(d_model=48, n_heads=4, mlp_ratio=3))) != plain


def test_what_is_no_ir_is_refused(preset):
    data = to_dict(normalize_to_ir(preset()))
    with pytest.raises(NormalizationError, match="again"):
        from_dict(data | {"surprise": 1})
    with pytest.raises(NormalizationError, match="no JSON"):
        from_json("{")


def test_an_alias_keeps_its_spelling():
    ir = normalize_to_ir(EVERYTHING)
    merges = [run["merge"] for run in to_dict(ir)["schedule"] if run["type"] == "parallel"]
    assert merges
    assert all("from" in merge for merge in merges)


def test_entries_hold_every_layer_once():
    ir = normalize_to_ir(EVERYTHING)
    assert [i for run in ir.schedule for i in layers_of(run)] == [layer.index for layer in ir.layers]
    assert {run.type for run in ir.schedule} == {"plain", "parallel", "integrator"}

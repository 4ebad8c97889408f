"""The small variant: about 50 K parameters, and still the same topology."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eulerstack.compiler.runtime import refuse, runtime_config
from eulerstack.errors import CompatibilityError
from eulerstack.export.build import build
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.ir.shrink import SMALL_VOCAB, few, shrink
from eulerstack.ir.types import layers_of

EVERYTHING = Path(__file__).parents[1] / "language" / "valid" / "everything.yml"
MAMBA2 = {"type": "mamba", "mamba": {"d_state": 64, "n_groups": 8}}


def test_the_catalogue_becomes_small(catalogue):
    for path in catalogue.values():
        ir = normalize_to_ir(path)
        small = shrink(ir)
        assert 25_000 < costs(small).total < 90_000, path.stem
        assert len(small.layers) <= 10
        assert {layer.template for layer in small.layers} == {layer.template for layer in ir.layers}
        assert small.model.n_heads * ir.model.n_kv_heads == small.model.n_kv_heads * ir.model.n_heads
        assert small.model.vocab_size == SMALL_VOCAB
        assert (small.tokenizer_contract.type, small.tokenizer_contract.pretrained) == ("byte_bpe", None)
        assert replace(small.head, mtp=None) == replace(ir.head, mtp=None)
        assert (small.head.mtp is None) == (ir.head.mtp is None)
        assert small.embedding.tie_word_embeddings == ir.embedding.tie_word_embeddings


def test_shrinking_is_deterministic_and_small_stays_small(catalogue):
    for path in catalogue.values():
        small = shrink(normalize_to_ir(path))
        assert small == shrink(normalize_to_ir(path))
        assert costs(shrink(small)).total <= costs(small).total * 1.2


def test_kinds_neighbours_and_order_stay(catalogue):
    small = shrink(normalize_to_ir(catalogue["arch_advanced_jamba"]))
    assert [x.template for x in small.layers] == ["mamba", "mamba_moe", "mamba", "attention_moe", "mamba"]
    windows = [x.mixer.attention.window for x in shrink(normalize_to_ir(catalogue["arch_intermediate_mistral"])).layers]
    assert windows == [13, 13, None, 13]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=40))
def test_few_shows_every_kind_and_every_pair_in_order(kinds):
    kept = [kinds[i] for i in few(kinds)]
    assert list(dict.fromkeys(kept)) == list(dict.fromkeys(kinds))
    assert set(pairwise(kinds)) <= set(pairwise(kept))
    assert len(kept) <= 2 * len(set(pairwise(kinds))) + 1


def test_windows_bind_and_keep_their_order(preset, template):
    sizes = [3, 100, 512, 4096, 70000]
    templates = [template({"window": w}) for w in sizes] + [template({"window": 900, "window_mode": "nsa"})]
    small = shrink(normalize_to_ir(preset(*templates, max_seq_len=8192, d_model=512)))
    windows = list(dict.fromkeys(x.mixer.attention.window for x in small.layers))
    assert windows[:5] == sorted(windows[:5])
    assert len(set(windows[:5])) == 5
    assert all(w < 26 for w in windows)
    assert small.layers[-1].mixer.attention.window_dilation == 2


@pytest.mark.parametrize(("experts", "top_k"), [(2, 1), (3, 2), (8, 2), (64, 8), (128, 1), (4, 4), (16, 16), (1, 1)])
def test_fewer_experts_are_chosen_than_there_are(experts, top_k, preset, template):
    moe = {"type": "moe", "moe": {"experts": experts, "top_k": top_k, "d_ff": 4096, "shared_experts": 1}}
    own = shrink(normalize_to_ir(preset(template({}, moe), d_model=1024, n_heads=8))).layers[0].ffn.moe
    assert (own.top_k < own.experts) == (top_k < experts)
    assert own.experts <= 4
    assert own.shared_experts == 1


@pytest.mark.parametrize(("heads", "kv"), [(32, 8), (32, 32), (14, 2), (25, 5), (64, 8), (71, 1), (12, 4), (1, 1)])
def test_the_ratio_of_heads_stays(heads, kv, preset):
    model = shrink(normalize_to_ir(preset(d_model=heads * 64, n_heads=heads, n_kv_heads=kv))).model
    assert model.n_heads * kv == model.n_kv_heads * heads
    assert (model.n_kv_heads == 1) == (kv == 1)
    assert model.head_dim % 2 == 0


@pytest.mark.parametrize(
    ("heads", "kv", "width", "positional"),
    [(16, 8, 128, "rope"), (16, 4, 32, "rope"), (12, 1, 256, "rope"), (5, 5, 7, "none"), (8, 8, 129, "alibi")],
)
def test_heads_as_wide_as_the_model_or_not(heads, kv, width, positional, preset):
    given = {"embedding": {"positional": positional}, "d_model": 1024, "n_heads": heads, "n_kv_heads": kv}
    model = shrink(normalize_to_ir(preset(head_dim=width, **given))).model
    assert (model.n_heads * model.head_dim > model.d_model) == (heads * width > 1024)
    assert (model.n_heads * model.head_dim < model.d_model) == (heads * width < 1024)
    assert model.head_dim % 2 == width % 2


@pytest.mark.parametrize(
    "embedding",
    [
        {"rope_fraction": 0.25},
        {"rope_fraction": 0.4375},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_fraction": 0.5},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
        {
            "rope_scaling": {
                "type": "llama3",
                "factor": 8.0,
                "original_max_position_embeddings": 2048,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            }
        },
        {"positional": "alibi"},
        {"positional": "learned", "scale": 32.0},
    ],
    ids=str,
)
def test_positions_stay(embedding, preset):
    ir = normalize_to_ir(preset(embedding=embedding, d_model=1024, n_heads=16, max_seq_len=4096))
    small = shrink(ir)
    assert small.embedding.positional == ir.embedding.positional
    assert small.embedding.rope_fraction == ir.embedding.rope_fraction
    scalings = (x.embedding.rope_scaling for x in (ir, small))
    before, after = (scaling and scaling.original_max_position_embeddings for scaling in scalings)
    assert (after or 0) * 4096 == 64 * (before or 0)
    if ir.embedding.scale:
        assert small.embedding.scale == pytest.approx(32.0 * (32 / 1024) ** 0.5)
    model = build(runtime_config(small)).eval()
    assert torch.isfinite(model(input_ids=torch.arange(40)[None]).logits).all()


@pytest.mark.parametrize("expand", [1, 2, 3])
@pytest.mark.parametrize("d_model", [32, 33, 48, 50])
def test_heads_of_mamba2_divide(expand, d_model, preset, template):
    mixer = {"type": "mamba", "mamba": {"expand": expand, "n_groups": 4}}
    small = shrink(normalize_to_ir(preset(template(mixer), d_model=768, n_heads=6)), d_model=d_model)
    build(runtime_config(small))


def test_given_sizes_are_taken(catalogue):
    ir = normalize_to_ir(catalogue["arch_beginner_llama"])
    small = shrink(ir, vocab_size=999, d_model=64, n_heads=16, n_layers=5, max_seq_len=33)
    model = small.model
    assert (model.vocab_size, model.d_model, model.n_heads, model.max_seq_len) == (999, 64, 16, 33)
    assert (model.n_kv_heads, model.head_dim, len(small.layers)) == (2, 4, 5)
    assert shrink(ir, d_model=64, n_heads=4).model.n_kv_heads == 1


@pytest.mark.parametrize("layers", [1, 2, 5, 9, 40])
def test_every_kind_occurs_whatever_the_depth(layers, catalogue):
    for name in ("arch_advanced_jamba", "arch_beginner_llama"):
        ir = normalize_to_ir(catalogue[name])
        small = shrink(ir, n_layers=layers)
        assert len(small.layers) >= layers
        assert {x.template for x in small.layers} == {x.template for x in ir.layers}


def test_one_odd_layer_at_the_end_stays(preset, template):
    schedule = [{"template": "t0", "repeat": 30}, {"template": "t1"}]
    ir = normalize_to_ir(preset(template(), template(MAMBA2), schedule=schedule, d_model=256))
    assert [x.template for x in shrink(ir).layers] == ["t0"] * 3 + ["t1"]
    assert [x.template for x in shrink(ir, n_layers=6).layers] == ["t0"] * 5 + ["t1"]


def test_a_single_layer_stays_single(preset):
    assert len(shrink(normalize_to_ir(preset())).layers) == 1


@pytest.mark.parametrize(("d_model", "n_heads"), [(64, 5), (64, 64), (30, 2)])
def test_sizes_that_do_not_go_together(d_model, n_heads, catalogue):
    with pytest.raises(CompatibilityError, match="n_heads"):
        shrink(normalize_to_ir(catalogue["arch_beginner_llama"]), d_model=d_model, n_heads=n_heads)


def test_every_kind_of_entry_stays():
    ir = normalize_to_ir(EVERYTHING)
    small = shrink(ir)
    assert {run.type for run in small.schedule} == {"plain", "parallel", "integrator"}
    assert {x.template for x in small.layers} == {x.template for x in ir.layers}
    assert [i for run in small.schedule for i in layers_of(run)] == list(range(len(small.layers)))
    assert {x.depth_gating for x in small.layers} == {x.depth_gating for x in ir.layers}


def test_every_branch_weighs(catalogue):
    """Without any one mixer, memory or FFN the logits move well beyond what checks call equal."""
    for path in catalogue.values():
        small = shrink(normalize_to_ir(path))
        refuse(small)
        torch.manual_seed(0)
        model = build(runtime_config(small)).eval()
        ids = torch.randint(5, SMALL_VOCAB, (2, 26))
        with torch.no_grad():
            full = model(input_ids=ids).logits
            for layer in model.model.layers:
                for part in (getattr(layer, name) for name in layer.present):
                    handle = part.register_forward_hook(lambda _, __, out: (torch.zeros_like(out[0]), *out[1:]))
                    moved = (model(input_ids=ids).logits - full).abs().max() / full.std()
                    handle.remove()
                    assert moved > 0.03, (path.stem, layer)

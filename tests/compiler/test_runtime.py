"""The payload of config.json says everything, and what is not built is refused by name and place."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from transformers import PretrainedConfig

from eulerstack.compiler.closure import parts
from eulerstack.compiler.runtime import refuse, runtime_config, unbuilt
from eulerstack.errors import CompileError, NormalizationError
from eulerstack.export.build import build_on_meta
from eulerstack.ir.normalizer import normalize, normalize_to_ir
from eulerstack.ir.shrink import shrink
from eulerstack.ir.tensors import parameters
from eulerstack.language.load import load_preset
from eulerstack.modeling.configuration_eulerstack import EulerStackConfig

EVERYTHING = Path(__file__).parents[1] / "language" / "valid" / "everything.yml"
PLAIN = {
    "schema_version": 1,
    "model": {"name": "plain", "d_model": 64, "vocab_size": 300, "max_seq_len": 96, "n_heads": 4},
    "tokenizer_contract": {"type": "byte_bpe"},
    "embedding": {"type": "learned", "positional": "rope"},
    "layer_templates": {"block": {"mixer": {"type": "attention"}, "ffn": {"type": "gated_mlp"}}},
    "layer_schedule": [{"template": "block", "repeat": 2}],
    "head": {"type": "causal_lm"},
}
MOE = {"type": "moe", "moe": {"experts": 4, "top_k": 2}}


def changed(changes: dict) -> dict:
    """PLAIN with the values at dotted addresses replaced."""
    tree = copy.deepcopy(PLAIN)
    for address, value in changes.items():
        *path, last = address.split(".")
        node = tree
        for step in path:
            node = node[int(step)] if isinstance(node, list) else node.setdefault(step, {})
        node[last] = value
    return tree


def config(**changes) -> dict:
    return runtime_config(normalize_to_ir(changed({key.replace("__", "."): v for key, v in changes.items()})))


def test_the_catalogue_is_plain_json_that_the_config_class_keeps(catalogue):
    for path in catalogue.values():
        for ir in (normalize_to_ir(path), shrink(normalize_to_ir(path))):
            payload = runtime_config(ir)
            assert json.loads(json.dumps(payload)) == payload
            kept = EulerStackConfig(**copy.deepcopy(payload))
            for key in payload.keys() - {"torch_dtype", "dtype", "rope_parameters", "model_type"}:
                assert getattr(kept, key) == payload[key], key
            assert kept.model_type == payload["model_type"]
            assert (kept.rope_parameters or {}).items() >= (payload["rope_parameters"] or {}).items()


def test_names_of_hugging_face():
    payload = config(model__n_kv_heads=2, model__d_ff=100, model__norm_eps=1e-6, head__tie_weights=False)
    expected = {
        "architectures": ["EulerStackForCausalLM"],
        "model_type": "eulerstack",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "vocab_size": 300,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 100,
        "max_position_embeddings": 96,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "use_cache": True,
        "layer_types": ["full_attention"] * 2,
        "block_pattern": ["block", "block"],
    }
    assert {key: payload[key] for key in expected} == expected


@pytest.mark.parametrize("positional", ["alibi", "none", "learned"])
def test_a_model_without_rope_has_no_rope_parameters(positional):
    payload = config(embedding__positional=positional)
    assert payload["rope_parameters"] is None
    assert not {"rope_theta", "rope_scaling", "partial_rotary_factor"} & payload.keys()


def test_rope_in_both_spellings():
    payload = config(embedding__rope_theta=5e5, embedding__rope_fraction=0.5)
    assert payload["rope_parameters"] == {
        "rope_type": "default",
        "rope_theta": 5e5,
        "partial_rotary_factor": 0.5,
    }
    assert (payload["rope_theta"], payload["partial_rotary_factor"]) == (5e5, 0.5)
    extra = {"factor": 8.0, "original_max_position_embeddings": 24, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    payload = config(embedding__rope_scaling={"type": "llama3"} | extra)
    plain = {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    assert payload["rope_parameters"] == {"rope_type": "llama3"} | extra | plain
    assert "rope_scaling" not in payload
    assert EulerStackConfig(**copy.deepcopy(payload)).rope_scaling == {"rope_type": "llama3"} | extra


SCALINGS = (
    None,
    {"type": "linear", "factor": 2.0},
    {"type": "dynamic", "factor": 2.0},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 24, "low_freq_factor": 1.0}
    | {"high_freq_factor": 4.0},
)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda x: x["type"] if x else "default")
def test_who_lacks_the_config_class_can_read_the_file(scaling, tmp_path):
    """As `AutoTokenizer` does without remote code; also after our class has written it again."""
    payload = config(embedding__rope_scaling=scaling)
    ours = EulerStackConfig(**copy.deepcopy(payload))
    assert (ours.rope_scaling or {"rope_type": None})["rope_type"] == (scaling or {"type": None})["type"]
    ours.save_pretrained(tmp_path)
    for text in (payload, json.loads((tmp_path / "config.json").read_text())):
        assert PretrainedConfig(**copy.deepcopy(text)).max_position_embeddings == payload["max_position_embeddings"]


def test_kinds_are_named_once():
    window = {"attention": {"window": 8}}
    schedule = [
        {"template": "block"},
        {"template": "block", "override": window},
        {"template": "block", "override": {"residual": {"scaling": 0.5}}},
        {"template": "block", "override": window},
        {"template": "block", "override": {"residual": {"scaling": 1.0}}},
        {"template": "block.1"},
    ]
    payload = config(
        layer_schedule=schedule,
        layer_templates={
            "block": PLAIN["layer_templates"]["block"],
            "block.1": {"mixer": {"type": "none"}, "ffn": MOE},
        },
    )
    assert payload["block_pattern"] == ["block", "block.2", "block.3", "block.2", "block", "block.1"]
    assert payload["blocks"]["block.2"]["mixer"]["window"] == 8
    assert payload["blocks"]["block.3"]["residual"]["scaling"] == 0.5
    windows = [payload["blocks"][kind]["mixer"].get("window") for kind in payload["block_pattern"]]
    assert windows == [None, 8, None, 8, None, None]


@pytest.mark.parametrize(
    ("mixer", "word"),
    [
        ({"type": "attention", "attention": {"window": 8, "window_mode": "dilated"}}, "sliding_attention"),
        ({"type": "attention", "attention": {"window": 8, "window_mode": "nsa"}}, "full_attention"),
        ({"type": "attention", "attention": {"latent_dim": 8, "window": 8}}, "sliding_attention"),
        ({"type": "mamba"}, "linear_attention"),
        ({"type": "none"}, "linear_attention"),
    ],
)
def test_words_of_transformers_for_layers(mixer, word):
    assert config(layer_templates__block__mixer=mixer)["layer_types"] == [word] * 2


def test_the_final_norm_is_of_the_last_layers_kind():
    norm = {"type": "layernorm", "position": "sandwich", "bias": False}
    payload = config(layer_templates__block__norm=norm)
    assert payload["final_norm"] == {"type": "layernorm", "unit_offset": False, "bias": False}
    assert config(layer_templates__block__norm={"position": "post"})["final_norm"] is None
    assert config(head__final_norm=False)["final_norm"] is None


def test_hints_and_heads_arrive():
    payload = config(
        training_hints={"init": {"std": 0.1, "scheme": "mup"}, "dropout": 0.2, "betas": [0.8, 0.9]},
        head__logit_softcap=30.0,
        head__bias=True,
        embedding__scale=8.0,
        compatibility__dtype_policy="layered_safe",
    )
    assert payload["init"] == {"std": 0.1, "scheme": "mup"}
    assert (payload["initializer_range"], payload["dropout"]) == (0.1, 0.2)
    assert payload["training_hints"]["betas"] == [0.8, 0.9]
    assert (payload["final_logit_softcapping"], payload["head_bias"], payload["embedding_scale"]) == (30.0, True, 8.0)
    assert payload["dtype_policy"] == "layered_safe"


@pytest.mark.parametrize(
    ("moe", "wanted"),
    [({}, True), ({"load_balance_coef": 0.0}, False), ({"load_balance_coef": 0.0, "z_loss": 0.1}, True)],
)
def test_router_logits_are_asked_for_where_a_loss_needs_them(moe, wanted):
    payload = config(layer_templates__block__ffn={"type": "moe", "moe": MOE["moe"] | moe})
    assert payload["output_router_logits"] is wanted
    assert payload["router_aux_loss_coef"] == (0.01 if wanted else 0.0)
    dense = config(training_hints={"router_aux_loss_coef": 0.3})
    assert dense["output_router_logits"] is False
    assert (dense["router_aux_loss_coef"], dense["training_hints"]["router_aux_loss_coef"]) == (0.0, 0.3)


def test_what_is_not_built_is_refused_at_its_key(tmp_path):
    file = tmp_path / "later.yml"
    file.write_text(yaml.safe_dump(changed({"compatibility.compile_target": "native"}), sort_keys=False))
    checked = load_preset(file)
    (problem,) = unbuilt(normalize(checked), checked)
    assert (problem.category, problem.where) == ("CompileError", "compatibility.compile_target")
    text = file.read_text().splitlines()[problem.line - 1]
    assert text[problem.column - 1 :].startswith("compile_target:")
    with pytest.raises(CompileError, match="compile_target: 'native' is not built yet"):
        runtime_config(normalize_to_ir(file))


def test_a_pattern_that_quantises_nothing_is_refused_at_its_place(tmp_path):
    file = tmp_path / "scope.yml"
    quantised = {"enabled": True, "scope": ["model.layers.*.ffn.*", "*.no_such_*", "*.embed_tokens.*"]}
    file.write_text(yaml.safe_dump(changed({"compatibility.quant_aware_training": quantised}), sort_keys=False))
    checked = load_preset(file)
    with pytest.raises(CompileError) as caught:
        refuse(normalize(checked), checked)
    problems = caught.value.problems
    assert [p.where.rpartition(".")[2] for p in problems] == ["scope[1]", "scope[2]"]
    lines = file.read_text().splitlines()
    assert all(p.what.split("'")[1] in lines[p.line - 1] for p in problems)


def test_a_pattern_of_a_layer_that_the_small_variant_has_not_is_dropped_there():
    quantised = {"enabled": True, "scope": ["model.layers.7.ffn.*", "*.o_proj.*"]}
    tree = changed({"layer_schedule.0.repeat": 9, "compatibility.quant_aware_training": quantised})
    small = shrink(normalize_to_ir(tree))
    assert small.compatibility.quant_aware_training.scope == ("*.o_proj.*",)
    refuse(small)


def test_everything_of_the_language_is_built(tmp_path):
    """The preset that uses every key compiles, is predicted to the last tensor, and runs."""
    ir = normalize(load_preset(EVERYTHING))
    refuse(ir)
    small = shrink(ir)
    model = build_on_meta(runtime_config(small))
    assert {name for name, _ in model.named_parameters()} == set(parameters(small))
    assert set(parts(runtime_config(ir))) >= {"run_parallel", "run_integrator", "depth_gate", "shape_change"}


@pytest.mark.parametrize(
    ("off", "part"),
    [
        ({"layer_schedule.0.depth_gating": {"enabled": False}}, "depth_gate"),
        ({"compatibility.quant_aware_training": {"enabled": False}}, "fake_quant"),
    ],
    ids=str,
)
def test_what_is_switched_off_is_not_there(off, part):
    payload = runtime_config(normalize_to_ir(changed(off)))
    assert part not in parts(payload)
    on = {key: value | {"enabled": True} for key, value in off.items()}
    assert part in parts(runtime_config(normalize_to_ir(changed(on))))


def test_an_ir_against_the_law_is_not_compiled():
    ir = normalize_to_ir(PLAIN)
    with pytest.raises(NormalizationError):
        runtime_config(type(ir)(**{**vars(ir), "layers": ()}))

"""The payload of config.json says everything, and what is not built is refused by name and place."""

import copy
import json
from pathlib import Path

import pytest
import yaml

from eulerstack.compiler.runtime import refuse, runtime_config, unbuilt
from eulerstack.errors import CompileError, NormalizationError
from eulerstack.ir.normalizer import normalize, normalize_to_ir
from eulerstack.ir.shrink import shrink
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
            for key in payload.keys() - {"torch_dtype", "dtype", "rope_scaling", "rope_parameters", "model_type"}:
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
    assert "rope_scaling" not in payload
    extra = {"factor": 8.0, "original_max_position_embeddings": 24, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    payload = config(embedding__rope_scaling={"type": "llama3"} | extra)
    assert payload["rope_scaling"] == {"rope_type": "llama3"} | extra
    plain = {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    assert payload["rope_parameters"] == {"rope_type": "llama3"} | extra | plain


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
    assert config()["output_router_logits"] is False


BLOCK = "layer_templates.block"
TWO_MIXERS = {"a": {"type": "attention"}, "b": {"type": "mamba"}}
STREAMS = [{"stream": name, "body": [{"template": "block"}]} for name in "ab"]


def mixer(kind: str, **options) -> dict:
    return {f"{BLOCK}.mixer": {"type": kind} | ({kind: options} if options else {})}


def moe(**options) -> dict:
    return {f"{BLOCK}.ffn": {"type": "moe", "moe": MOE["moe"] | options}}


LATER = [
    (f"{BLOCK}.mixer.type", mixer("retnet")),
    (f"{BLOCK}.mixer.type", mixer("hyena")),
    (f"{BLOCK}.mixer.type", mixer("ttt_layer")),
    (f"{BLOCK}.mixer.type", mixer("branched", branches=TWO_MIXERS)),
    (f"{BLOCK}.mixer.attention.q_latent_dim", mixer("attention", latent_dim=16, q_latent_dim=24)),
    (f"{BLOCK}.mixer.attention.qk_rope_dim", mixer("attention", latent_dim=16, qk_rope_dim=8)),
    (f"{BLOCK}.mixer.attention.qk_nope_dim", mixer("attention", latent_dim=16, qk_nope_dim=8)),
    (f"{BLOCK}.mixer.attention.v_head_dim", mixer("attention", latent_dim=16, v_head_dim=8)),
    (f"{BLOCK}.mixer.attention.compression", mixer("attention", compression={"type": "hca", "m_block": 4})),
    (f"{BLOCK}.mixer.attention.attention_sinks", mixer("attention", attention_sinks={"n_per_head": 1})),
    (f"{BLOCK}.ffn.moe.routing.type", moe(routing={"type": "hash", "hash_salt": 3})),
    (f"{BLOCK}.ffn.moe.balance.group_limit", moe(balance={"group_limit": 2})),
    (f"{BLOCK}.ffn.moe.balance.sequence_aux_coef", moe(balance={"sequence_aux_coef": 0.1})),
    (f"{BLOCK}.memory", {f"{BLOCK}.memory": {"type": "associative"}}),
    (f"{BLOCK}.shape_change", {f"{BLOCK}.shape_change": {"d_out": 32}}),
    (f"{BLOCK}.residual.type", {f"{BLOCK}.residual": {"type": "hyper_connection", "hyper": {"expand": 2}}}),
    ("layer_schedule[0].depth_gating", {"layer_schedule.0.depth_gating": {"capacity": 0.5}}),
    (
        "layer_schedule[0].integrator",
        {"layer_schedule": [{"integrator": {"type": "discrete", "steps": 2, "body": "block"}}]},
    ),
    ("layer_schedule[0].parallel", {"layer_schedule": [{"parallel": STREAMS}]}),
    ("head.type", {"head": {"type": "causal_lm_mtp", "mtp": {"head_template": "block"}}}),
    ("compatibility.compile_target", {"compatibility.compile_target": "native"}),
    (
        "compatibility.quant_aware_training.enabled",
        {"compatibility.quant_aware_training": {"enabled": True}},
    ),
    ("execution_modes", {"execution_modes": [{"name": "think", "max_tokens": 9}]}),
    ("transition", {"transition": {"type": "budget_exhausted"}}),
]


@pytest.mark.parametrize(("where", "changes"), LATER, ids=str)
def test_what_is_not_built_is_refused_at_its_key(where, changes, tmp_path):
    file = tmp_path / "later.yml"
    file.write_text(yaml.safe_dump(changed(changes), sort_keys=False))
    checked = load_preset(file)
    (problem,) = unbuilt(normalize(checked), checked)
    assert problem.category == "CompileError"
    assert problem.where == where
    assert "not built yet" in problem.what
    key = where.rpartition(".")[2].partition("[")[0]
    text = file.read_text().splitlines()[problem.line - 1]
    assert text[problem.column - 1 :].startswith(f"{key}:")
    with pytest.raises(CompileError, match=key):
        runtime_config(normalize_to_ir(file))


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_schedule.0.depth_gating": {"enabled": False}},
        {"compatibility.quant_aware_training": {"enabled": False}},
        mixer("attention", attention_sinks={"n_per_head": 0}),
        moe(balance={}, routing={"type": "learned"}),
    ],
    ids=str,
)
def test_what_is_switched_off_is_not_refused(changes):
    ir = normalize_to_ir(changed(changes))
    refuse(ir)
    runtime_config(ir)


def test_all_gaps_at_once_each_once():
    checked = load_preset(EVERYTHING)
    problems = unbuilt(normalize(checked), checked)
    wheres = [problem.where for problem in problems]
    assert len(wheres) == len(set(wheres)) > 25
    assert all(problem.line for problem in problems)
    for name in ("compression", "attention_sinks", "memory", "shape_change", "depth_gating", "parallel", "integrator"):
        assert any(where.endswith(name) for where in wheres), name
    with pytest.raises(CompileError) as error:
        refuse(normalize(checked), checked)
    assert len(error.value.problems) == len(problems)
    lines = [problem.line for problem in error.value.problems]
    assert lines == sorted(lines)


def test_a_missing_mixer_is_answered_with_those_there_are():
    (problem,) = unbuilt(normalize_to_ir(changed(mixer("retnet"))))
    assert problem.fix == "use one of attention, mamba, none"
    assert (problem.path, problem.line) == ("plain", None)


def test_an_ir_against_the_law_is_not_compiled():
    ir = normalize_to_ir(PLAIN)
    with pytest.raises(NormalizationError):
        runtime_config(type(ir)(**{**vars(ir), "layers": ()}))

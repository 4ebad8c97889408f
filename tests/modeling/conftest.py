"""Small models for the tests of the modeling code: payloads as the compiler writes them, in the package and exported.

`options/<part>.json` holds small options for each mixer and feed-forward file, `options/<part>.<variant>.json` others.
"""

import importlib
import json
import shutil
from pathlib import Path
from runpy import run_path

import pytest
import torch

import eulerstack.modeling
from eulerstack.compiler.closure import auto_map, closure, exported
from eulerstack.compiler.closure import parts as named_parts
from eulerstack.modeling.causal_lm import CausalLM
from eulerstack.modeling.configuration_eulerstack import EulerStackConfig
from eulerstack.modeling.decoder import Decoder
from eulerstack.modeling.layer import build_part

FOLDER = Path(eulerstack.modeling.__path__[0])
ROWS = run_path(str(Path(__file__).with_name("rows.py")))
PRE = {"type": "rmsnorm", "position": "pre", "unit_offset": False, "bias": True}
SEQUENTIAL = {"type": "sequential", "scaling": 1.0}


def options(part: str) -> dict:
    return json.loads((Path(__file__).parent / "options" / f"{part}.json").read_text())


def block(mixer="attention", ffn="gated_mlp", *, norm=None, residual=None, ffn_options=None, **mixer_options) -> dict:
    """A block of the named parts with their small options, changed by `mixer_options` and `ffn_options`."""
    mixer_values = {} if mixer == "none" else options(f"mixer_{mixer}") | mixer_options
    ffn_values = {} if ffn == "none" else options(f"ffn_{ffn}") | (ffn_options or {})
    return {
        "mixer": {"type": mixer.partition(".")[0]} | mixer_values,
        "ffn": {"type": ffn} | ffn_values,
        "norm": PRE | (norm or {}),
        "residual": SEQUENTIAL | (residual or {}),
    }


def layer_type(mixer: dict) -> str:
    if "n_heads" not in mixer:
        return "linear_attention"
    return "full_attention" if mixer["window"] is None else "sliding_attention"


def payload(*blocks: dict, pattern=None, **changes) -> dict:
    """A config.json payload; one layer per block unless `pattern` lists kinds (block i is "kind<i>")."""
    kinds = {f"kind{i}": b for i, b in enumerate(blocks)}
    pattern = pattern or list(kinds)
    heads = next(
        (b["mixer"] for b in blocks if "n_heads" in b["mixer"]), {"n_heads": 4, "n_kv_heads": 2, "head_dim": 6}
    )
    base = {
        "architectures": ["EulerStackForCausalLM"],
        "model_type": "eulerstack",
        "dtype": "float32",
        "vocab_size": 67,
        "hidden_size": 20,
        "num_hidden_layers": len(pattern),
        "num_attention_heads": heads["n_heads"],
        "num_key_value_heads": heads["n_kv_heads"],
        "head_dim": heads["head_dim"],
        "intermediate_size": 17,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
        "tie_word_embeddings": True,
        "use_cache": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
        "layer_types": [layer_type(kinds[kind]["mixer"]) for kind in pattern],
        "positional": "rope",
        "embedding_scale": None,
        "blocks": kinds,
        "block_pattern": pattern,
        "schedule": None,
        "streams": None,
        "mtp": None,
        "quantisation": None,
        "final_norm": {"type": "rmsnorm", "unit_offset": False, "bias": True},
        "head_type": "causal_lm",
        "head_bias": False,
        "final_logit_softcapping": None,
        "dropout": 0.0,
        "init": {"scheme": "normal", "std": 0.2},
        "dtype_policy": "uniform",
        "router_aux_loss_coef": 0.01,
        "output_router_logits": any(b["ffn"]["type"] == "moe" for b in blocks),
        "training_hints": {},
        "execution_modes": [],
        "transition": None,
    }
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return base | changes


def part(name: str) -> type:
    """The class of "mixer_attention", "ffn_mlp", ... from its file."""
    name = name.partition(".")[0]
    module = importlib.import_module(f"eulerstack.modeling.{name}")
    return getattr(module, exported(name))


def made(name: str, config, **changes):
    """The mixer or feed-forward layer of a file, with its small options and `changes`."""
    role, kind = name.split("_", 1)
    spec = options(name) | changes
    inner = {f"{role}_{branch['type']}" for branch in spec.get("branches", {}).values()}
    return build_part({n: part(n) for n in (name, *inner)}, role, config, 0, spec | {"type": kind})


def build(payload: dict, dtype=torch.float32, seed: int = 0):
    """The in-package model of a payload, in evaluation mode."""
    parts = {name: part(name) for name in named_parts(payload)}
    backbone = type("EulerStackModel", (Decoder,), {"parts": parts})
    entry = type("EulerStackForCausalLM", (CausalLM,), {"parts": parts, "backbone": backbone})
    torch.manual_seed(seed)
    return entry(EulerStackConfig(**payload)).to(dtype).eval()


def export(payload: dict, folder: Path):
    """Write the model of `payload` as a directory that needs nothing but torch and transformers; returns the model."""
    model, found = build(payload), closure(payload, folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    for name in found.files:
        shutil.copyfile(FOLDER / name, folder / name)
    (folder / f"{found.entry_name}.py").write_text(found.entry_text)
    text = payload | {"auto_map": auto_map(found.entry_name), "torch_dtype": payload["dtype"]}
    (folder / "config.json").write_text(json.dumps(text))
    return model


@pytest.fixture(params=ROWS["VARIANTS"])
def rows(request):
    """Rows with and without padding and borders of documents (rows.py)."""
    return ROWS["VARIANTS"][request.param]


@pytest.fixture(scope="session")
def rows_of():
    """`rows_of(keep, starts, shape)`: other rows."""
    return ROWS["Rows"]


@pytest.fixture(scope="session")
def plain():
    """Rows of one document each, without padding."""
    return ROWS["VARIANTS"]["plain"]


def given(function):
    """The fixture that is the function itself, under its name."""
    return pytest.fixture(name=function.__name__, scope="session")(lambda: function)


_block, _payload, _made, _build, _export, _options, _part = map(
    given, (block, payload, made, build, export, options, part)
)

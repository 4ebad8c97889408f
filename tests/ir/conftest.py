"""Presets as short as they can be said, from an abstract to the dict of a file."""

import copy

import pytest

LLAMA = {"mixer": {"type": "attention"}, "ffn": {"type": "gated_mlp"}}


def preset(
    *templates: dict, schedule: list | None = None, embedding=None, head=None, hints=None, compatibility=None, **model
) -> dict:
    """The dict of a preset: template i is named "t<i>" and scheduled once each, unless `schedule` says more."""
    named = {f"t{i}": copy.deepcopy(template) for i, template in enumerate(templates or (LLAMA,))}
    sizes = {"name": "p", "d_model": 48, "vocab_size": 300, "max_seq_len": 96, "n_heads": 4, "dtype": "float32"}
    return {
        "schema_version": 1,
        "model": sizes | model,
        "tokenizer_contract": {"type": "byte_bpe"},
        "embedding": {"type": "learned", "positional": "rope"} | (embedding or {}),
        "layer_templates": named,
        "layer_schedule": schedule or [{"template": name} for name in named],
        "head": {"type": "causal_lm"} | (head or {}),
        "training_hints": hints or {},
        "compatibility": compatibility or {},
    }


def template(mixer: dict | None = None, ffn: dict | None = None, **rest) -> dict:
    """A layer template; `mixer` are options of attention unless it names a type."""
    mixer = mixer or {}
    mixer = mixer if "type" in mixer else {"type": "attention", "attention": mixer}
    return {"mixer": mixer, "ffn": ffn or {"type": "gated_mlp"}, **rest}


@pytest.fixture(name="preset", scope="session")
def _preset():
    return preset


@pytest.fixture(name="template", scope="session")
def _template():
    return template

"""A small valid document as a plain dict, for tests that change one thing of it."""

from typing import Any

import pytest


@pytest.fixture
def plain() -> dict[str, Any]:
    return {
        "schema_version": 1,
        "model": {"name": "plain", "d_model": 256, "vocab_size": 512, "max_seq_len": 128, "n_heads": 4},
        "tokenizer_contract": {"type": "byte_bpe"},
        "embedding": {"type": "learned", "positional": "rope"},
        "layer_templates": {"block": {"mixer": {"type": "attention"}, "ffn": {"type": "gated_mlp"}}},
        "layer_schedule": [{"template": "block", "repeat": 2}],
        "head": {"type": "causal_lm"},
    }

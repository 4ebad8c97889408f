import json

import pytest

from eulerstack.modeling.configuration_eulerstack import EulerStackConfig


@pytest.fixture(params=["rope", "yarn", "none"])
def written(request, payload, block):
    """A config.json, as the compiler writes it."""
    kinds = block(window=5), block("none", "mlp")
    if request.param == "rope":
        return payload(*kinds)
    if request.param == "none":
        return payload(*kinds, positional="none", rope_parameters=None, head_dim=7)  # odd: nothing rotates
    rope = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
    rope |= {"partial_rotary_factor": 0.5, "beta_fast": 30.0}
    return payload(*kinds, rope_parameters=rope, rope_theta=500.0, partial_rotary_factor=0.5)


def test_every_value_survives_a_round_trip(written, tmp_path):
    text = written | {"tie_word_embeddings": True, "head_bias": True, "embedding_scale": 2.5, "dropout": 0.1}
    EulerStackConfig(**text).save_pretrained(tmp_path)
    again = json.loads((tmp_path / "config.json").read_text())
    assert {key: again.get(key) for key in text} == text
    EulerStackConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == again


@pytest.mark.parametrize("tied", [True, False])
def test_tie_and_ids_are_always_written(payload, block, tied, tmp_path):
    config = EulerStackConfig(**payload(block(), tie_word_embeddings=tied, bos_token_id=4, eos_token_id=5))
    config.save_pretrained(tmp_path)
    again = json.loads((tmp_path / "config.json").read_text())
    assert (again["tie_word_embeddings"], again["bos_token_id"], again["eos_token_id"]) == (tied, 4, 5)


@pytest.mark.parametrize(("windows", "largest"), [((None,), None), ((5,), 5), ((5, None, 9), 9)])
def test_sliding_window(payload, block, windows, largest):
    assert EulerStackConfig(**payload(*(block(window=w) for w in windows))).sliding_window == largest


def test_rope_is_stretched_in_the_older_spelling_too(payload, block):
    kept = {"rope_theta": 500.0, "partial_rotary_factor": 0.5}
    config = EulerStackConfig(**payload(block(), rope_parameters={"rope_type": "default"} | kept))
    assert config.rope_scaling is None
    config.rope_scaling = {"type": "linear", "factor": 2.0}
    assert config.rope_parameters == {"rope_type": "linear", "factor": 2.0} | kept
    assert config.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    again = EulerStackConfig.from_dict(config.to_dict(), rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    assert again.rope_parameters == {"rope_type": "dynamic", "factor": 4.0} | kept
    again.rope_scaling = None
    assert again.rope_parameters == {"rope_type": "default"} | kept


def test_where_nothing_rotates_nothing_is_stretched(payload, block):
    config = EulerStackConfig(**payload(block(), positional="none", rope_parameters=None))
    config.rope_scaling = None
    with pytest.raises(ValueError, match="no rope to stretch"):
        config.rope_scaling = {"rope_type": "linear", "factor": 2.0}
    assert config.rope_parameters is None


def test_it_has_defaults_for_everything():
    assert EulerStackConfig().to_dict()["model_type"] == "eulerstack"

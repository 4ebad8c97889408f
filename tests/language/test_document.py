"""The document that rules look at."""

import pytest

from eulerstack.language.document import Document, echoes
from eulerstack.language.load import check


@pytest.fixture
def document(plain):
    plain["layer_templates"]["two"] = {
        "mixer": {"type": "branched", "branched": {"branches": {"a": {"type": "mamba"}, "b": {"type": "hyena"}}}},
        "ffn": {"type": "none"},
    }
    streams = [{"stream": name, "body": [{"template": "two", "repeat": 3}]} for name in "xy"]
    integrator = {"type": "discrete", "steps": 9, "body": "block"}
    plain["layer_schedule"] += [{"parallel": streams}, {"integrator": integrator}]
    checked = check(plain)
    return Document(checked.spec, checked.source)


def test_layers_in_order(document):
    layers = [(run.where, run.name, run.count) for run in document.layers()]
    assert layers == [
        (("layer_schedule", 0, "template"), "block", 2),
        (("layer_schedule", 1, "parallel", 0, "body", 0, "template"), "two", 3),
        (("layer_schedule", 1, "parallel", 1, "body", 0, "template"), "two", 3),
        (("layer_schedule", 2, "integrator", "body"), "block", 1),
    ]


def test_mixers_with_their_branches(document):
    assert [mixer.type for _, mixer in document.mixers()] == ["attention", "branched", "mamba", "hyena"]


def test_given_is_what_was_written(document):
    assert document.given("embedding", "positional")
    assert not document.given("embedding", "rope_theta")


def test_head_dim(document):
    assert document.head_dim == 64


@pytest.mark.parametrize(
    ("where", "wrong", "echo"),
    [
        (("model", "n_heads"), ("model", "bogus"), True),
        (("model", "n_heads"), ("embedding", "bogus"), False),
        (("model", "n_heads"), ("bogus",), False),
        (("layer_templates", "a", "state", "kv_cache"), ("layer_templates", "a", "mixer", "type"), False),
        (("layer_templates", "a", "mixer", "attention", "window"), ("layer_templates", "a", "mixer", "x"), True),
        (("layer_templates", "a", "residual"), ("layer_templates", "a", "residual", "hyper", "x"), True),
        (("layer_schedule", 0, "template"), ("layer_schedule", 1, "bogus"), False),
        (("layer_schedule", 0, "template"), ("layer_schedule", 0, "override", "bogus"), True),
    ],
)
def test_echoes(where, wrong, echo):
    assert echoes(where, {wrong}) is echo

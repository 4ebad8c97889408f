"""Two keys held against each other, in words."""

import pytest

from eulerstack.graph.causes import ABSENT, causes, dotted, inside_of, pairs, said

A, B = "a" * 64, "b" * 64


def lines(old: dict, new: dict, contents: dict | None = None) -> list[str]:
    found = causes(old, new, lambda sha256: (contents or {}).get(sha256, ABSENT))
    return [line for cause in found for line in cause.lines()]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ({"python": "3.11"}, {"python": "3.12"}, "python: 3.11 -> 3.12"),
        ({"libraries": {"torch": "2.9.0"}}, {"libraries": {"torch": "2.9.1"}}, "library torch: 2.9.0 -> 2.9.1"),
        ({"code": {"h/x.py": A}}, {"code": {"h/x.py": B}}, "code h/x.py: aaaaaaaaaaaa -> bbbbbbbbbbbb"),
        ({"code": {}}, {"code": {"h/x.py": B}}, "code h/x.py: none -> bbbbbbbbbbbb"),
        ({"modeling": {"m.py": A}}, {"modeling": {}}, "modeling file m.py: aaaaaaaaaaaa -> none"),
        ({"inputs": {"devices": []}}, {"inputs": {"devices": ["H200"]}}, 'inputs.devices: [] -> ["H200"]'),
        (
            {"inputs": {"options": {"lr": 1e-4}}},
            {"inputs": {"options": {"lr": 0.001}}},
            "inputs.options.lr: 0.0001 -> 0.001",
        ),
        ({"script": {"a.py": A}}, {}, 'script: {"a.py": "' + "a" * 47 + "... -> none"),
        ({"inputs": {"n": 1}}, {"inputs": {"n": True}}, "inputs.n: 1 -> true"),
    ],
)
def test_each_kind_of_input_has_its_words(old, new, line):
    assert lines(old, new) == [line]
    assert lines(old, old) == []


def test_a_digest_whose_contents_are_known_says_what_is_different_inside():
    contents = {A: {"ir": {"d_model": 256}, "parts": ["x"]}, B: {"ir": {"d_model": 512}, "parts": ["x"]}}
    both = {"inputs": {"compile": A}}, {"inputs": {"compile": B}}
    told = ["inputs.compile: aaaaaaaaaaaa -> bbbbbbbbbbbb", "    ir.d_model: 256 -> 512"]
    assert lines(*both, contents) == told
    assert lines(*both, {A: contents[A]}) == told[:1]


def test_the_same_change_in_several_items_is_one_line():
    def layers(*windows):
        return {"layers": [{"mixer": {"window": window, "type": "attention"}} for window in windows]}

    assert inside_of(layers(8, 8, 8), layers(4, 4, 4)) == ["layers[0..2].mixer.window: 8 -> 4"]
    assert inside_of(layers(8, 8, 8), layers(4, 8, 4)) == ["layers[0, 2].mixer.window: 8 -> 4"]
    assert inside_of(layers(8, 8, 8), layers(8, 4, 8)) == ["layers[1].mixer.window: 8 -> 4"]
    assert inside_of(layers(8, 8), layers(4, 2)) == ["layers[0].mixer.window: 8 -> 4", "layers[1].mixer.window: 8 -> 2"]
    assert inside_of(layers(8), layers(8, 8)) == ["layers: 1 items -> 2 items"]


def test_a_long_list_of_changes_ends():
    found = inside_of({str(n): n for n in range(30)}, {str(n): n + 1 for n in range(30)})
    assert len(found) == 13
    assert found[-1] == "and 18 more"


def test_equal_things_differ_nowhere():
    value = {"a": [1, {"b": None}], "c": {}}
    assert list(pairs(value, value)) == []
    assert inside_of([], []) == []


def test_values_are_short_and_places_are_dotted():
    assert said("x" * 100) == "x" * 57 + "..."
    assert said("") == '""'
    assert said(None) == "null"
    assert dotted(("a", 0, "b", "[1..2]")) == "a[0].b[1..2]"
    assert dotted(()) == "all of it"

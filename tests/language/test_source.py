"""Files and dicts to trees with places."""

import datetime

import pytest
import yaml

from eulerstack.errors import ParseError
from eulerstack.language.source import MAX_BYTES, MAX_VALUES, parse, read_source, tree_of


def refusal(call, *args):
    with pytest.raises(ParseError) as caught:
        call(*args)
    (problem,) = caught.value.problems
    return problem


def test_every_key_and_value_has_a_place():
    source = parse("a:\n  b: [1, {c: x}]\n", "p.yml")
    assert source.tree == {"a": {"b": [1, {"c": "x"}]}}
    assert source.keys == {("a",): (1, 1), ("a", "b"): (2, 3), ("a", "b", 1, "c"): (2, 11)}
    assert source.values[("a", "b", 0)] == (2, 7)
    assert source.values[("a", "b", 1, "c")] == (2, 14)


def test_place_of_what_is_not_there_is_the_enclosing_key():
    source = parse("a:\n  b: [1, {c: x}]\n", "p.yml")
    assert source.place(("a", "z", "y")) == (1, 1)
    assert source.place(("a", "b", 1, "z")) == (2, 10)
    assert source.place(("a", "b")) == (2, 6)
    assert source.place(("a", "b"), key=True) == (2, 3)
    assert source.place(("z",)) == (1, 1)


def test_a_dict_has_no_places():
    source = tree_of({"a": 1})
    assert (source.path, source.place(("a",))) == ("<dict>", None)
    assert source.problem("ValidationError", ("a",), "w", "f").place == "<dict>"


def test_duplicates_keep_the_first_and_go_on():
    source = parse("a: 1\na: 2\nb: {c: 1, c: 2}\n", "p.yml")
    assert source.tree == {"a": 1, "b": {"c": 1}}
    assert [(p.line, p.column, p.where) for p in source.problems] == [(2, 1, "a"), (3, 11, "b.c")]


@pytest.mark.parametrize("key", ["1", "1.5", "true", "on", "null", "~", "[a]", "{a: b}", "2024-01-01", '"\\ud800"'])
def test_a_key_is_text(key):
    source = parse(f"x: 1\n? {key}\n: 2\n", "p.yml")
    assert source.tree == {"x": 1}
    assert [(p.line, p.column) for p in source.problems] == [(2, 3)]


@pytest.mark.parametrize("key", ["'1'", '"on"', "a b", "n", "x.y"])
def test_quoted_keys_are_text(key):
    assert parse(f"{key}: 2\n", "p.yml").problems == ()


MERGES = {
    "b: &b {x: 1, y: 2}\nc: {<<: *b, y: 3}\n": {"y": 3, "x": 1},
    "b: &b {x: 1}\nd: &d {x: 2, z: 3}\nc: {<<: [*b, *d]}\n": {"x": 1, "z": 3},
    "a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b}\n": {"y": 2, "x": 1},
}


@pytest.mark.parametrize("text", MERGES)
def test_merges_mean_what_pyyaml_means(text):
    source = parse(text, "p.yml")
    assert source.tree["c"] == MERGES[text] == yaml.safe_load(text)["c"]
    assert source.problems == ()


def test_a_merged_value_lies_where_it_is_written():
    assert parse("b: &b {x: 1}\nc: {<<: *b}\n", "p.yml").place(("c", "x")) == (1, 11)


def test_only_mappings_merge():
    (problem,) = parse("c: {<<: [1]}\n", "p.yml").problems
    assert "merges mappings only" in problem.what


def test_repeated_merges_are_bounded():
    lines = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 40)]
    assert str(MAX_VALUES) in refusal(parse, "\n".join(lines), "p.yml").what


def test_chained_merges_are_bounded():
    lines = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: *a{i - 1}}}" for i in range(1, 100)]
    assert "nested more than 64" in refusal(parse, "\n".join(lines), "p.yml").what


def test_aliases_are_bounded():
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    assert str(MAX_VALUES) in refusal(parse, "\n".join(lines), "p.yml").what


def test_aliases_do_not_hide_depth():
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 100)]
    assert "nested more than 64" in refusal(parse, "\n".join(lines), "p.yml").what


FILES = {
    "not UTF-8": (b"a: 1\nb: caf\xe9\n", (2, 7), "byte 0xe9 is not UTF-8"),
    "not UTF-8 after a mark": (b"\xef\xbb\xbfa: \xff\n", (1, 4), "byte 0xff"),
    "UTF-16": ("a: 1\n".encode("utf-16"), (1, 1), "byte 0xff"),
    "an image": (b"\x89PNG\r\n\x1a\n\x00\x00", (1, 1), "byte 0x89"),
    "zeros": (bytes(64), (1, 1), "U+0000"),
    "empty": (b"", (1, 1), "empty"),
    "a list": (b"# x\n- a\n", (2, 1), "a preset is a mapping"),
    "a word": (b"word", (1, 1), "a preset is a mapping"),
    "null": (b"~", (1, 1), "a preset is a mapping"),
    "large": (b"#" * (MAX_BYTES + 1), (None, None), "larger than 256 KiB"),
}


@pytest.mark.parametrize("name", FILES)
def test_no_preset(name, tmp_path):
    content, place, words = FILES[name]
    file = tmp_path / "p.yml"
    file.write_bytes(content)
    problem = refusal(read_source, file)
    assert words in problem.what
    assert (problem.path, (problem.line, problem.column)) == (str(file), place)


def test_a_byte_order_mark_is_no_character(tmp_path):
    file = tmp_path / "p.yml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_source(file).keys == {("a",): (1, 1)}


@pytest.mark.parametrize("name", ["missing.yml", ".", "nul\0byte.yml"])
def test_no_file(name, tmp_path):
    assert refusal(read_source, f"{tmp_path}/{name}").path == f"{tmp_path}/{name}"


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_no_dict(data):
    assert "a preset is a mapping" in refusal(tree_of, data).what


def test_a_dict_of_other_things_is_refused_at_each():
    data = {"a": datetime.date(2024, 1, 31), "b": {1: 2, "c": {3}}, "d": 2**70, "e": "\ud800", "f": (1, 2)}
    source = tree_of(data)
    assert [p.where for p in source.problems] == ["a", "b", "b.c", "d", "e"]
    assert source.tree["f"] == [1, 2]


def test_a_dict_in_itself_is_bounded():
    data: dict = {}
    data["a"] = data
    assert "nested more than 64" in refusal(tree_of, data).what


def test_a_dict_of_aliases_is_bounded():
    item: list = ["x"]
    for _ in range(40):
        item = [item, item]
    assert str(MAX_VALUES) in refusal(tree_of, {"a": item}).what

"""A stamp is what was written or nothing."""

import json

import pytest

from eulerstack.graph import stamp

DOCUMENT = {"key": {"inputs": {"preset": "a" * 64}, "stage": "compile"}, "note": "", "outputs": {}, "summary": "ü"}


def test_a_stamp_is_json_with_a_seal():
    data = stamp.sealed(DOCUMENT)
    assert stamp.unsealed(data) == DOCUMENT
    assert {name: value for name, value in json.loads(data).items() if name != "seal"} == DOCUMENT


def test_every_flipped_or_lost_byte_is_noticed():
    data = stamp.sealed(DOCUMENT)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 4
        assert stamp.unsealed(bytes(flipped)) is None, place
        assert stamp.unsealed(data[:place]) is None, place
    assert stamp.unsealed(data + b"\n") is None


def test_a_stamp_appears_whole(tmp_path):
    path, scratch = tmp_path / "deep" / "stamp.json", tmp_path / "scratch"
    scratch.mkdir()
    assert stamp.read(path) is None
    stamp.write(path, DOCUMENT, scratch)
    assert stamp.read(path) == DOCUMENT
    assert list(scratch.iterdir()) == []


def test_a_failed_write_leaves_the_old_stamp(tmp_path):
    path = tmp_path / "stamp.json"
    stamp.write(path, DOCUMENT, tmp_path)
    with pytest.raises(FileNotFoundError):
        stamp.write(path, DOCUMENT | {"note": "new"}, tmp_path / "absent")
    assert stamp.read(path) == DOCUMENT


@pytest.mark.parametrize(
    ("old", "new", "places"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, ["a.c"]),
        ({"a": 1, "b": 2}, {"b": 3}, ["a", "b"]),
        ({"a": [1]}, {"a": [2]}, ["a"]),
        (1, 2, ["all"]),
    ],
)
def test_differences_are_named_by_their_place(old, new, places):
    assert stamp.differences(old, new) == places

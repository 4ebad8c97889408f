import gzip
import json
import re
import sys

import pytest

from eulerstack.data.documents import documents
from eulerstack.errors import DataError


def read(path, *field):
    with path.open("rb") as file:
        return list(documents(file, *field))


@pytest.fixture
def lines(tmp_path):
    """`lines(*bytes)`: a file of these lines."""

    def lines(*content, name="x.jsonl"):
        (tmp_path / name).write_bytes(b"".join(line + b"\n" for line in content))
        return tmp_path / name

    return lines


def test_texts_in_order_and_empty_lines_are_none(lines):
    path = lines(b'{"text": "one\\n"}', b"", b"  \r", '{"id": 3, "text": "zwölf 🙂"}'.encode(), b'{"text": ""}')
    assert read(path) == ["one\n", "zwölf 🙂", ""]


def test_another_field_and_windows_line_ends(lines):
    assert read(lines(b'{"body": "a"}\r', b'{"body": "b"}\r'), "body") == ["a", "b"]


def test_gzip(tmp_path):
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n') + gzip.compress(b'{"text": "b"}\n'))
    assert read(path) == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"text": "a"', "no JSON: "),
        (b'{"text": "\xff"}', "no JSON: 'utf-8' codec"),
        (b"[" * 200_000, "no JSON: "),
        (b'["a"]', "a JSON array, not an object"),
        (b'{"id": "7", "txt": "a"}', "text: no such field"),
        (b'{"text": null}', "text: a JSON null, not a string"),
        (b'{"text": 3.5}', "text: a JSON number, not a string"),
        (b'{"text": "\\ud800"}', "text: half a surrogate pair at character 0"),
    ],
)
def test_a_bad_line_is_placed(lines, line, what):
    path = lines(b'{"text": "good"}', b"", line, b'{"text": "good"}')
    with pytest.raises(DataError, match=re.escape(f"{path}:3: DataError: {what}")):
        read(path)


def test_all_bad_lines_at_once_up_to_ten(lines):
    good, bad = b'{"text": ""}', b'{"t": ""}'
    with pytest.raises(DataError) as caught:
        read(lines(good, bad, good, bad))
    assert [p.line for p in caught.value.problems] == [2, 4]
    assert "this line has t" in caught.value.problems[0].fix
    with pytest.raises(DataError) as caught:
        read(lines(*[bad] * 1000))
    assert [p.line for p in caught.value.problems] == list(range(1, 11))


def test_a_damaged_archive_says_how_far_it_came(tmp_path):
    whole = gzip.compress(b"".join(json.dumps({"text": str(i**9)}).encode() + b"\n" for i in range(5000)))
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"x\.jsonl\.gz:\d+: DataError: the archive is damaged after line \d+"):
        read(path)
    path.write_bytes(b"plain text")
    with pytest.raises(DataError, match="damaged after line 0"):
        read(path)


def test_zstd(tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="the package zstandard is optional")
    path = tmp_path / "x.jsonl.zst"
    pack = zstandard.ZstdCompressor().compress
    path.write_bytes(pack(b'{"text": "a"}\n') + pack(b'{"text": "b"}\n'))
    assert read(path) == ["a", "b"]
    path.write_bytes(b"plain text")
    with pytest.raises(DataError, match="damaged after line 0"):
        read(path)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 reads zstd itself")
def test_zstd_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "x.zst").write_bytes(b"")
    with pytest.raises(DataError, match="Fix: pip install zstandard"):
        read(tmp_path / "x.zst")

"""Dolma documents: one JSON object per line with its text under `text`; plain, gzip or zstd (Soldaini et al. 2024)."""

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from eulerstack.errors import DataError, Problem

SEE = "docs/tutorials/05_prepare_data.md#documents-dolma-jsonl"
MOST = 10  # problems reported of one file


def documents(file: BinaryIO, text_field: str = "text") -> Iterator[str]:
    """The texts of an opened file of documents, in order; empty lines are none.

    Raises DataError with the line of the first ten that are no JSON object, lack the field, or hold no text in it,
    and for a damaged or unreadable archive.
    """
    problems = []
    for number, line in _lines(file):
        try:
            text = _text(line, text_field)
        except _Wrong as wrong:
            problems.append(Problem("DataError", file.name, number, None, wrong.where, wrong.what, wrong.fix, SEE))
            if len(problems) == MOST:
                break
        else:
            if not problems:
                yield text
    if problems:
        raise DataError(problems)


class _Wrong(Exception):
    def __init__(self, where: str, what: str, fix: str):
        super().__init__(what)
        self.where, self.what, self.fix = where, what, fix


def _text(line: bytes, field: str) -> str:
    try:
        document = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise _Wrong("", f"no JSON: {error}", "write one JSON object per line, in UTF-8") from error
    if not isinstance(document, dict):
        raise _Wrong("", f"a JSON {_kind(document)}, not an object", 'write {"id": ..., "text": ...}')
    if field not in document:
        fix = f"name the field that holds the text; this line has {', '.join(document) or 'none'}"
        raise _Wrong(field, "no such field", fix)
    text = document[field]
    if not isinstance(text, str):
        raise _Wrong(field, f"a JSON {_kind(text)}, not a string", "write the text as a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Wrong(field, f"half a surrogate pair at character {error.start}", "write whole characters") from error
    return text


def _kind(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", list: "array", dict: "object", str: "string"}
    return names.get(type(value), "null")


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that hold anything, counted from 1."""
    stream, damage = _unpacked(file)
    number = 0
    try:
        for number, line in enumerate(stream, 1):
            if not line.isspace():
                yield number, line
    except damage as error:
        what = f"the archive is damaged after line {number}: {error}"
        raise DataError.at(file.name, what, "fetch or pack the file again", SEE, line=number or None) from error


def _unpacked(file: BinaryIO) -> tuple[BinaryIO, tuple[type[Exception], ...]]:
    """The stream of plain bytes, and the exceptions by which it reports damage."""
    if file.name.endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(fileobj=file)), (OSError, EOFError, zlib.error)
    if file.name.endswith(".zst"):
        return _zstd(file)
    return file, ()


def _zstd(file: BinaryIO) -> tuple[BinaryIO, tuple[type[Exception], ...]]:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdFile(file), (zstd.ZstdError, EOFError)
    try:
        import zstandard
    except ModuleNotFoundError as error:
        what = "reading .zst needs the package zstandard"
        raise DataError.at(file.name, what, "pip install zstandard", SEE) from error
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return io.BufferedReader(reader), (zstandard.ZstdError,)

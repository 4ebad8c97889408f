"""One source file of documents becomes one shard: a NumPy file of token ids, and a JSON file of its facts.

A shard is named by the content of the file, of the tokenizer, and the arguments that change tokens, never by a path or
a time: a moved or touched file is found again, an edited one is tokenized alone.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from eulerstack.atomic import made_once, whole
from eulerstack.data.dataset import SEE, Shard
from eulerstack.data.documents import documents
from eulerstack.errors import DataError
from eulerstack.export.tokenizer import Tokenizer

VERSION = 1
BATCH = 1 << 20  # characters encoded together
FACTS = {"documents", "length", "max_token_id"}
HEADER = 128  # bytes of a NumPy file before its data


@dataclass(frozen=True)
class Job:
    """What shapes the tokens of a shard besides its source. `rows` is the most documents to read, None for all."""

    tokenizer: Tokenizer
    text_field: str
    bos: int | None
    eos: int | None
    rows: int | None

    @property
    def dtype(self) -> str:
        return "<u2" if self.tokenizer.size <= 1 << 16 else "<u4"

    def key(self, source: Path) -> str:
        with source.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        encoder = hashlib.sha256(self.tokenizer.files["tokenizer.json"]).hexdigest()
        parts = [VERSION, content, source.suffix, encoder, self.text_field, self.bos, self.eos, self.rows]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def shard(source: Path, job: Job, folder: Path) -> Shard:
    """The shard of one file, tokenized unless it is there. Its facts, in the .json, are written after its tokens."""
    facts = folder / f"{job.key(source)}.json"
    tokens = facts.with_suffix(".npy")

    def make(file: BinaryIO) -> None:
        written = _write_tokens(source, job, tokens)
        if job.key(source) != facts.stem:
            raise DataError.at(source, "the file changed while it was read", "run again", SEE)
        file.write(json.dumps(written).encode())

    def sound(path: Path) -> bool:
        found = _facts(path)
        if found is None or not tokens.is_file():
            return False
        return tokens.stat().st_size == HEADER + found["length"] * np.dtype(job.dtype).itemsize

    made_once(facts, make, sound)
    return Shard(source, tokens, **_facts(facts))


def _facts(path: Path) -> dict[str, int] | None:
    """What is recorded of a shard; None if nothing is, or something else."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    whole_numbers = isinstance(found, dict) and found.keys() == FACTS and all(type(n) is int for n in found.values())
    return found if whole_numbers else None


def _write_tokens(source: Path, job: Job, path: Path) -> dict[str, int]:
    """Write the tokens of `source` as a one-dimensional NumPy file, and return its facts."""
    length, count, largest = 0, 0, -1
    with source.open("rb") as raw, whole(path) as file, _progress(source) as progress:
        file.write(bytes(HEADER))
        for ids, read in _encoded(raw, job):
            file.write(ids)
            length, count, largest = length + len(ids), count + read, max(largest, int(ids.max()))
            progress.update(progress.task_ids[0], completed=raw.tell())
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, {"descr": job.dtype, "fortran_order": False, "shape": (length,)})
        assert file.tell() == HEADER
    return {"documents": count, "length": length, "max_token_id": largest}


def _encoded(raw: BinaryIO, job: Job) -> Iterator[tuple[np.ndarray, int]]:
    """Tokens and number of documents of one batch after the other; a batch is encoded while the last one is packed."""
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_buffer(job.tokenizer.files["tokenizer.json"])
    backend.encode_special_tokens = True  # a document that spells the end token is text, not the end
    texts = islice(documents(raw, job.text_field), job.rows)
    with ThreadPoolExecutor(1) as pool:
        earlier = None
        for batch in _batches(texts):
            coming = pool.submit(backend.encode_batch_fast, batch, add_special_tokens=False)
            if earlier:
                yield _packed(earlier.result(), job)
            earlier = coming
        if earlier:
            yield _packed(earlier.result(), job)


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _packed(encodings: list, job: Job) -> tuple[np.ndarray, int]:
    """All ids in one array, each document between its marks."""
    before = [] if job.bos is None else [job.bos]
    after = [] if job.eos is None else [job.eos]
    ids = []
    for encoding in encodings:
        ids += before
        ids += encoding.ids
        ids += after
    return np.array(ids, job.dtype), len(encodings)


def _progress(source: Path) -> Progress:
    """A bar on the terminal's error stream; nothing where that is no terminal."""
    columns = (TextColumn("tokenize {task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    bar = Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True)
    bar.disable = not sys.stderr.isatty()
    bar.add_task(source.name, total=source.stat().st_size)
    return bar

"""From dolma documents to windows of tokens: tokenized once, found again by content."""

import glob
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from eulerstack.data.dataset import SEE, TokenizedDataset
from eulerstack.data.shards import Job, shard
from eulerstack.errors import DataError
from eulerstack.export.hub import fetch, locate
from eulerstack.export.tokenizer import Contract, Tokenizer, resolve
from eulerstack.paths import cache_dir as project_cache

__all__ = ["TokenizedDataset", "tokenize_jsonl"]

KNOWN_SIZES = {"gpt2": 50257, "openai-community/gpt2": 50257}  # of tokenizers that something may stand in for
log = logging.getLogger(__name__)


def tokenize_jsonl(
    jsonl_path: str | os.PathLike | Iterable[str | os.PathLike],
    tokenizer_name: str | os.PathLike | Tokenizer = "gpt2",
    max_seq_len: int = 512,
    num_rows: int | None = None,
    text_field: str = "text",
    cache_dir: str | os.PathLike | None = None,
    add_bos: bool = True,
    add_eos: bool = True,
) -> TokenizedDataset:
    """Tokenize dolma documents (.jsonl, .json.gz, .zst) and return them as windows of `max_seq_len` tokens.

    `jsonl_path` is a file, a glob or several of them; `num_rows` the number of documents to read in total. Every
    document is put between the tokenizer's begin and end tokens, so far as it has them and `add_bos`, `add_eos` ask.
    `tokenizer_name` is a directory, a hub name or a resolved tokenizer; gpt2 out of reach gets a stand-in of its size,
    and the dataset says so. Shards are kept in `cache_dir`, by default `tokens/` in the project's cache.
    Raises DataError, with file and line, for documents that cannot be read.
    """
    if max_seq_len < 1 or (num_rows is not None and num_rows < 1):
        raise DataError.at("tokenize_jsonl", "max_seq_len and num_rows are at least 1", "ask for one or more", SEE)
    sources = _sources(jsonl_path)
    tokenizer = tokenizer_name if isinstance(tokenizer_name, Tokenizer) else _tokenizer(os.fspath(tokenizer_name))
    bos = tokenizer.bos_token_id if add_bos else None
    eos = tokenizer.eos_token_id if add_eos else None
    folder = Path(cache_dir) if cache_dir else project_cache() / "tokens"
    shards, left = [], num_rows
    for source in sources:
        shards.append(shard(source, Job(tokenizer, text_field, bos, eos, left), folder))
        left = None if left is None else left - shards[-1].documents
        if left == 0:
            break
    return TokenizedDataset(tuple(shards), max_seq_len, tokenizer.digest, tokenizer.stand_in)


def _sources(given: str | os.PathLike | Iterable[str | os.PathLike]) -> list[Path]:
    """The files meant, in the order given, those of a glob by name."""
    found = []
    for one in [given] if isinstance(given, str | os.PathLike) else given:
        path = Path(one)
        pattern = os.fspath(one)
        matches = [path] if path.is_file() else [Path(p) for p in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207  a pattern may be absolute
        files = [p for p in matches if p.is_file()]
        if not files:
            raise DataError.at(pattern, "no such file", "give a file of dolma documents, a list or a glob", SEE)
        found += files
    if not found:
        raise DataError.at("tokenize_jsonl", "no file at all", "give a file of dolma documents, a list or a glob", SEE)
    return found


def _tokenizer(name: str) -> Tokenizer:
    at_hand = locate(name) or fetch(name)
    if at_hand is None and name not in KNOWN_SIZES:
        what = "this tokenizer cannot be reached, and its size is not known"
        raise DataError.at(name, what, "give the directory of a tokenizer, such as an exported model", SEE)
    tokenizer = resolve(Contract(type="hf", pretrained=name), None if at_hand else KNOWN_SIZES[name])
    if tokenizer.stand_in:
        log.warning("%s cannot be reached: tokenizing with %s", name, tokenizer.source)
    return tokenizer

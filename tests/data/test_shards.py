import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend

from eulerstack.data import shards
from eulerstack.data.sample import write_corpus
from eulerstack.data.shards import Job, shard
from eulerstack.errors import DataError

KILLED = """
import sys
from pathlib import Path
from eulerstack.data.prepare import tokenize_jsonl
tokenize_jsonl(sys.argv[1], sys.argv[2], cache_dir=sys.argv[3])
"""


@pytest.fixture
def job(small):
    return Job(small, "text", small.bos_token_id, small.eos_token_id, None)


def reference(tokenizer, texts):
    backend = Backend.from_buffer(tokenizer.files["tokenizer.json"])
    return [i for text in texts for i in [0, *backend.encode(text, add_special_tokens=False).ids, 1]]


def test_tokens_of_the_whole_corpus_one_document_at_a_time(job, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BATCH", 50_000)  # several batches, one in flight
    source = write_corpus()
    texts = [json.loads(line)["text"] for line in source.read_text(encoding="utf-8").splitlines()]
    made = shard(source, job, tmp_path)
    expected = reference(job.tokenizer, texts)
    tokens = np.load(made.tokens, mmap_mode="r")
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == expected
    assert (made.documents, made.length, made.max_token_id) == (len(texts), len(expected), max(expected))


def test_a_large_vocabulary_takes_four_bytes(job, write, tmp_path):
    wide = replace(job, tokenizer=replace(job.tokenizer, size=65537))
    assert replace(job, tokenizer=replace(job.tokenizer, size=65536)).dtype == "<u2"
    made = shard(write("a.jsonl", "some text"), wide, tmp_path)
    assert np.load(made.tokens).dtype == np.uint32


def test_a_document_cannot_forge_a_mark(job, write, tmp_path):
    made = shard(write("a.jsonl", "one<|end_of_text|>two"), job, tmp_path)
    tokens = np.load(made.tokens).tolist()
    assert tokens.count(1) == 1
    assert tokens[-1] == 1


def test_the_key_is_content_and_arguments_never_path_or_time(job, write):
    one, two, other = write("a.jsonl", "text"), write("b.jsonl", "text"), write("c.jsonl", "Text")
    assert job.key(one) == job.key(two)
    two.touch()
    changed = [replace(job, bos=None), replace(job, eos=None), replace(job, rows=3), replace(job, text_field="body")]
    keys = {job.key(one), job.key(two), job.key(other), *(c.key(one) for c in changed)}
    assert len(keys) == 6


def test_a_shard_is_made_once(job, write, tmp_path):
    made = shard(write("a.jsonl", "text"), job, tmp_path / "tokens")
    before = made.tokens.stat().st_mtime_ns
    again = shard(write("moved.jsonl", "text"), job, tmp_path / "tokens")
    assert again.tokens == made.tokens
    assert again.tokens.stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_damaged_tokens_are_made_again(job, write, tmp_path, damage):
    source = write("a.jsonl", "some text")
    made = shard(source, job, tmp_path / "tokens")
    expected = made.tokens.read_bytes()
    made.tokens.unlink()
    if damage == "cut":
        made.tokens.write_bytes(expected[:-2])
    assert shard(source, job, tmp_path / "tokens").tokens.read_bytes() == expected


def test_a_failure_leaves_nothing(job, write, tmp_path):
    source = write("a.jsonl", "good")
    source.write_text(source.read_text() + "bad\n")
    with pytest.raises(DataError, match=r"a\.jsonl:2: "):
        shard(source, job, tmp_path / "tokens")
    assert [p.suffix for p in (tmp_path / "tokens").iterdir() if p.suffix != ".lock"] == []


def test_a_file_edited_while_it_is_read_is_refused(job, write, tmp_path, monkeypatch):
    source = write("a.jsonl", "text")
    real = shards._write_tokens

    def edited(source, job, path):
        written = real(source, job, path)
        source.write_text('{"text": "other"}\n')
        return written

    monkeypatch.setattr(shards, "_write_tokens", edited)
    with pytest.raises(DataError, match="changed while it was read"):
        shard(source, job, tmp_path / "tokens")


def test_kill_9_and_again_is_as_if_nothing_had_been(job, tmp_path):
    source = tmp_path / "big.jsonl"
    source.write_bytes(write_corpus().read_bytes() * 8)
    (tmp_path / "tokenizer").mkdir()
    job.tokenizer.write(tmp_path / "tokenizer")
    tokens = tmp_path / "tokens"
    process = subprocess.Popen([sys.executable, "-c", KILLED, source, tmp_path / "tokenizer", tokens])
    until = time.monotonic() + 60
    while not list(tokens.glob(".*.npy.tmp")) and time.monotonic() < until:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(tokens.glob(".*.npy.tmp"))
    again, clean = shard(source, job, tokens), shard(source, job, tmp_path / "clean")
    assert again.tokens.read_bytes() == clean.tokens.read_bytes()
    assert sorted(p.name for p in tokens.iterdir() if p.suffix != ".lock") == [
        f"{again.tokens.stem}.json",
        again.tokens.name,
    ]


WRONG_LENGTH = b'{"documents": 2, "length": "x", "max_token_id": 3}'


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b"[]", b"{}", WRONG_LENGTH])
def test_damaged_facts_are_made_again(job, write, tmp_path, damage):
    source = write("a.jsonl", "one two", "three")
    made = shard(source, job, tmp_path / "tokens")
    facts = made.tokens.with_suffix(".json")
    before = facts.read_bytes()
    facts.write_bytes(damage)
    assert shard(source, job, tmp_path / "tokens") == made
    assert facts.read_bytes() == before

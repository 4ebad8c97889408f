import hashlib
import json
import os
import subprocess
import sys

import pytest
from tokenizers import Tokenizer as Backend

from eulerstack.errors import DataError, ExportError
from eulerstack.export import byte_bpe

TRAIN = """
import hashlib, json
from eulerstack.data.sample import corpus
from eulerstack.export.byte_bpe import train
texts = [json.loads(line)["text"] for line in corpus().decode().splitlines()]
print(hashlib.sha256(train(texts, 4000).encode()).hexdigest())
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EULERSTACK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("size", [258, 259, 320, 1001, 50257])
def test_exactly_the_size_asked_for(size):
    backend = Backend.from_str(byte_bpe.trained(size, None))
    vocabulary = backend.get_vocab()
    assert sorted(vocabulary.values()) == list(range(size))
    assert vocabulary[byte_bpe.BOS] == 0
    assert vocabulary[byte_bpe.EOS] == 1


@pytest.mark.parametrize("size", [258, 320, 50257])
def test_any_text_comes_back(size):
    backend = Backend.from_str(byte_bpe.trained(size, None))
    for text in (
        "Hello world, naïve café: 12345 \n\t x",
        " ",
        "",
        "<|reserved_300|>",
        "\x00\x7f🙂é",
        "don't  a   b\r\n",
    ):
        assert backend.decode(backend.encode(text).ids) == text


def test_words_are_split_as_gpt2_splits_them():
    backend = Backend.from_str(byte_bpe.trained(320, None))
    pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("we'll pay 12 euro!!  now")]
    assert pieces == ["we", "'ll", "Ġpay", "Ġ12", "Ġeuro", "!!", "Ġ", "Ġnow"]


def test_where_the_corpus_ends_reserved_entries_begin():
    state = json.loads(byte_bpe.train(["low lower lowest"] * 3, 400))
    vocabulary = state["model"]["vocab"]
    merges = len(state["model"]["merges"])
    reserved = [name for name in vocabulary if name.startswith("<|reserved_")]
    assert 0 < merges < 20
    assert len(reserved) == 400 - 258 - merges
    assert [vocabulary[name] for name in reserved] == list(range(258 + merges, 400))


def test_a_smaller_vocabulary_is_the_beginning_of_a_larger():
    small, large = (json.loads(byte_bpe.trained(size, None))["model"] for size in (300, 1000))
    assert large["merges"][: len(small["merges"])] == small["merges"]
    assert small["vocab"].items() <= large["vocab"].items()


def test_identical_bytes_on_any_threads_and_hash_seed():
    digests = set()
    for threads, seed in (("1", "0"), ("2", "1"), ("5", "2")):
        env = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", TRAIN], env=env, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1


def test_trained_once_and_a_damaged_file_again(cache):
    text = byte_bpe.trained(300, None)
    (kept,) = (cache / "tokenizers").glob("*.json")
    before = kept.stat().st_mtime_ns
    assert byte_bpe.trained(300, None) == text
    assert kept.stat().st_mtime_ns == before
    kept.write_bytes(kept.read_bytes().replace(b"Hello", b"Jello").replace(b'"the"', b'"teh"')[:-5])
    assert byte_bpe.trained(300, None) == text


def test_a_corpus_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setenv("EULERSTACK_HOME", str(tmp_path))
    (tmp_path / "own.jsonl").write_text('{"text": "zyzzyva zyzzyva zyzzyva"}\n')
    assert "zyzzyva" in json.loads(byte_bpe.trained(300, "own.jsonl"))["model"]["vocab"]
    before = byte_bpe.key(300, "own.jsonl")
    assert before["corpus"] == hashlib.sha256((tmp_path / "own.jsonl").read_bytes()).hexdigest()
    (tmp_path / "own.jsonl").write_text('{"text": "other"}\n')
    assert byte_bpe.key(300, "own.jsonl") != before
    with pytest.raises(DataError, match="there is no such corpus"):
        byte_bpe.key(300, "none.jsonl")
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"bad\.jsonl:1: DataError: text: no such field"):
        byte_bpe.trained(300, "bad.jsonl")


def test_too_small_for_the_bytes():
    with pytest.raises(ExportError, match="cannot have 257 entries"):
        byte_bpe.trained(257, None)

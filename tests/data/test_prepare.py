import gzip
import logging

import pytest

from eulerstack.data.prepare import TokenizedDataset, tokenize_jsonl
from eulerstack.data.sample import write_corpus
from eulerstack.errors import DataError, ExportError
from eulerstack.export.tokenizer import Contract, resolve


def tokens(dataset):
    return [i for item in dataset for i in item["input_ids"].tolist()]


def test_gpt2_out_of_reach_gets_a_stand_in_and_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        data = tokenize_jsonl(write_corpus())
    assert isinstance(data, TokenizedDataset)
    assert data.stand_in
    assert "gpt2 cannot be reached" in caplog.text
    assert data[0]["input_ids"].shape == (512,)
    assert 3000 < data.max_token_id < 50257
    assert data.tokenizer == resolve(Contract(type="hf", pretrained="gpt2"), 50257).digest
    data.check_vocab(50257)
    with pytest.raises(DataError, match=r"python_topics\.jsonl: DataError: token id"):
        data.check_vocab(1000)


def test_a_name_of_unknown_size_is_an_error(write):
    with pytest.raises(DataError, match="nobody/nothing: DataError: this tokenizer cannot be reached"):
        tokenize_jsonl(write("a.jsonl", "x"), "nobody/nothing")


def test_a_directory_of_tokenizer_files(small, write, tmp_path):
    (tmp_path / "tok").mkdir()
    small.write(tmp_path / "tok")
    source = write("a.jsonl", "some text to tokenize")
    data = tokenize_jsonl(source, tmp_path / "tok", max_seq_len=4)
    assert not data.stand_in
    assert tokens(data) == tokens(tokenize_jsonl(source, small, max_seq_len=4))
    with pytest.raises(ExportError, match=r"holds no tokenizer\.json"):
        tokenize_jsonl(source, tmp_path)


@pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, True), (False, False)])
def test_marks_around_each_document(small, write, bos, eos):
    data = tokenize_jsonl(write("a.jsonl", "xyz", "", "q"), small, 1, add_bos=bos, add_eos=eos)
    found = tokens(data)
    assert found.count(0) == 3 * bos
    assert found.count(1) == 3 * eos
    assert len(found) == 4 + 3 * bos + 3 * eos


def test_a_tokenizer_without_marks_adds_none(small, write, tmp_path):
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_bytes(small.files["tokenizer.json"])
    assert tokens(tokenize_jsonl(write("a.jsonl", "xyz"), tmp_path / "tok", 1)) == [89, 90, 91]


def test_a_file_a_list_and_a_glob(small, write, tmp_path):
    b, a = write("b.jsonl", "second file"), write("a.jsonl", "first file")
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(b.read_bytes()))
    both = tokenize_jsonl([a, b], small, 1)
    assert tokens(tokenize_jsonl(str(tmp_path / "*.jsonl"), small, 1)) == tokens(both)
    assert tokens(tokenize_jsonl([b, a], small, 1)) == [
        t for path in (b, a) for t in tokens(tokenize_jsonl(path, small, 1))
    ]
    assert tokens(tokenize_jsonl([a, tmp_path / "c.json.gz"], small, 1)) == tokens(both)


@pytest.mark.parametrize("given", ["no.jsonl", "no*.jsonl", [], ["/"]])
def test_no_file_is_an_error(small, given):
    with pytest.raises(DataError, match=r"no such file|no file at all"):
        tokenize_jsonl(given, small)


def test_rows_are_counted_over_all_files(small, write):
    files = [write("a.jsonl", *"abcde"), write("b.jsonl", *"fghij"), write("c.jsonl", "never read")]
    for rows in (1, 5, 7, 10):
        data = tokenize_jsonl(files, small, 1, num_rows=rows, add_bos=False)
        assert data.num_documents == rows
        assert data.num_tokens == 2 * rows
    assert len(data.shards) == 2
    assert tokenize_jsonl(files, small, 1).num_documents == 11


@pytest.mark.parametrize("wrong", [{"max_seq_len": 0}, {"num_rows": 0}])
def test_impossible_numbers(small, write, wrong):
    with pytest.raises(DataError, match="at least 1"):
        tokenize_jsonl(write("a.jsonl", "x"), small, **wrong)


def test_an_edited_source_is_tokenized_alone(small, write, tmp_path):
    files = [write(f"{i}.jsonl", f"text {i}") for i in range(3)]
    before = tokenize_jsonl(files, small, 1, cache_dir=tmp_path / "tokens")
    times = [s.tokens.stat().st_mtime_ns for s in before.shards]
    write("1.jsonl", "text edited")
    after = tokenize_jsonl(files, small, 5, cache_dir=tmp_path / "tokens")
    assert [s.tokens for s in after.shards][::2] == [s.tokens for s in before.shards][::2]
    assert [s.tokens.stat().st_mtime_ns for s in after.shards][::2] == times[::2]
    assert after.shards[1].tokens != before.shards[1].tokens
    assert len(list((tmp_path / "tokens").glob("*.npy"))) == 4

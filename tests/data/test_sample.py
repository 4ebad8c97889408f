import hashlib
import json
import subprocess
import sys

from eulerstack.data.sample import corpus, corpus_digest, write_corpus


def test_the_corpus_is_dolma_documents_of_real_text(tmp_path):
    path = write_corpus(tmp_path)
    documents = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(d.keys() == {"id", "text", "source", "metadata"} for d in documents)
    assert len({d["id"] for d in documents}) == len(documents) > 50
    assert sum(len(d["text"]) for d in documents) > 300_000
    assert " the " in documents[0]["text"]


def test_the_file_is_named_by_its_content_and_not_written_twice(tmp_path):
    path = write_corpus(tmp_path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == corpus_digest()
    assert path.parent.name == corpus_digest()[:16]
    before = path.stat().st_mtime_ns
    assert write_corpus(tmp_path) == path
    assert path.stat().st_mtime_ns == before


def test_a_damaged_file_is_written_again(tmp_path):
    path = write_corpus(tmp_path)
    path.write_bytes(corpus()[:1000])
    assert write_corpus(tmp_path).read_bytes() == corpus()


def test_the_same_in_every_process_and_without_docstrings():
    code = "from eulerstack.data.sample import corpus_digest; print(corpus_digest())"
    for options in ([], ["-OO"]):
        done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == corpus_digest()

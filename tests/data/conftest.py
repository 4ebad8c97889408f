"""A cache of its own for all tests of data, no network, and documents to write."""

import json

import pytest

from eulerstack.export.tokenizer import Contract, resolve


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def offline(shared_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("EULERSTACK_CACHE", str(shared_cache))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no_hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def small(offline):
    """A tokenizer of 321 tokens."""
    return resolve(Contract(type="byte_bpe"), 321)


@pytest.fixture
def write(tmp_path):
    """`write(name, *texts)`: a file of documents."""

    def write(name, *texts):
        path = tmp_path / name
        path.write_text("".join(json.dumps({"id": str(i), "text": t}) + "\n" for i, t in enumerate(texts)))
        return path

    return write

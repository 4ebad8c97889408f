"""The embedded corpus: English prose that every Python carries, so that everything runs offline.

The text is the reference manual inside `pydoc_data.topics` (about half a million characters; written by the Python
Software Foundation, PSF license). Its bytes follow from the Python version alone.
"""

import hashlib
import json
from functools import cache
from pathlib import Path

from eulerstack.atomic import made_once
from eulerstack.errors import DataError
from eulerstack.paths import cache_dir

SOURCE = "pydoc_data.topics"


@cache
def corpus() -> bytes:
    """The corpus as dolma JSONL: one document per topic, sorted by name."""
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        what = "this Python was installed without its documentation"
        fix = "install the whole standard library, or name a corpus of your own"
        raise DataError.at(SOURCE, what, fix, "docs/language.md") from error
    lines = [json.dumps(_document(name, topics[name]), ensure_ascii=False) for name in sorted(topics)]
    return "".join(f"{line}\n" for line in lines).encode()


def _document(topic: str, text: str) -> dict:
    return {"id": f"{SOURCE}/{topic}", "text": text, "source": SOURCE, "metadata": {"topic": topic}}


@cache
def corpus_digest() -> str:
    """sha256 of the corpus, in hex."""
    return hashlib.sha256(corpus()).hexdigest()


def write_corpus(cache: Path | None = None) -> Path:
    """The corpus as a file under `cache` (the project's cache by default), named by its content."""
    folder = (cache or cache_dir()) / "corpus" / corpus_digest()[:16]

    def sound(path: Path) -> bool:
        return path.is_file() and path.read_bytes() == corpus()

    return made_once(folder / "python_topics.jsonl", lambda file: file.write(corpus()), sound)

"""A byte-level BPE tokenizer of an exact size, trained here (Radford et al. 2019, section 2.2; GPT-2's split of words).

Ids: begin 0, end 1, the 256 bytes, the merges in the order they were learned, then reserved entries up to the size
wherever the corpus is too small to teach that many merges. A reserved entry never comes out of any text.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

from eulerstack.atomic import made_once
from eulerstack.data.documents import documents
from eulerstack.data.sample import corpus_digest, write_corpus
from eulerstack.errors import DataError, ExportError
from eulerstack.paths import cache_dir, workspace

VERSION = 1
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
SMALLEST = 2 + 256
SEE = "docs/language.md#tokenizer_contract"


def key(vocab_size: int, corpus: str | None) -> dict:
    """Everything the trained tokenizer depends on, without training it."""
    return {
        "algorithm": f"byte_bpe {VERSION}",
        "tokenizers": version("tokenizers"),
        "corpus": _digest(corpus),
        "vocab_size": vocab_size,
    }


def trained(vocab_size: int, corpus: str | None) -> str:
    """`tokenizer.json` with exactly `vocab_size` entries; trained once, then kept under its key.

    `corpus` is a dolma file, None the embedded one. Raises ExportError if the size cannot hold the 256 bytes.
    """
    if vocab_size < SMALLEST:
        what = f"a byte-level BPE cannot have {vocab_size} entries: the bytes and two marks take {SMALLEST}"
        raise ExportError.at("byte_bpe", what, "raise model.vocab_size", SEE, where="model.vocab_size")
    name = hashlib.sha256(json.dumps(key(vocab_size, corpus), sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / "tokenizers" / f"{name}.json"
    made_once(path, lambda file: file.write(_sealed(train(_texts(corpus), vocab_size))), _is_sealed)
    return path.read_bytes().partition(b"\n")[2].decode()


def train(texts: Iterable[str], vocab_size: int) -> str:
    """Learn merges from `texts` and return `tokenizer.json`.

    The same on any number of threads: the trainer takes the commonest pair, of equals the one with the smaller ids.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    names = (name for i in range(vocab_size) if (name := f"<|reserved_{i}|>") not in vocab)
    vocab |= {next(names): i for i in range(len(vocab), vocab_size)}
    return json.dumps(state, ensure_ascii=False)


def _sealed(text: str) -> bytes:
    return hashlib.sha256(text.encode()).hexdigest().encode() + b"\n" + text.encode()


def _is_sealed(path: Path) -> bool:
    if not path.is_file():
        return False
    seal, _, body = path.read_bytes().partition(b"\n")
    return hashlib.sha256(body).hexdigest().encode() == seal


def _digest(corpus: str | None) -> str:
    if corpus is None:
        return corpus_digest()
    with _file(corpus).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file(corpus: str) -> Path:
    path = workspace() / Path(corpus).expanduser()
    if not path.is_file():
        raise DataError.at(path, "there is no such corpus", "give the path of a dolma file", SEE)
    return path


def _texts(corpus: str | None) -> Iterator[str]:
    with (write_corpus() if corpus is None else _file(corpus)).open("rb") as file:
        yield from documents(file)

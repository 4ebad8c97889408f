"""Tokenized text on disk, read as windows of one length without loading it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from eulerstack.errors import DataError, Problem

SEE = "docs/tutorials/05_prepare_data.md"


@dataclass(frozen=True)
class Shard:
    """The tokens of one source file: `length` ids of `documents` documents in the NumPy file `tokens`."""

    source: Path
    tokens: Path
    documents: int
    length: int
    max_token_id: int


@dataclass(frozen=True)
class TokenizedDataset:
    """All tokens of all shards in one row, cut into windows of `max_seq_len`; what does not fill one is left out.

    A map-style dataset: `len`, and `[i]` gives {"input_ids": int64 [max_seq_len], "labels": the same}; the model shifts
    the labels itself. `tokenizer` is the content digest of the tokenizer, `stand_in` says whether it stands in for
    the one asked for.
    """

    shards: tuple[Shard, ...]
    max_seq_len: int
    tokenizer: str
    stand_in: bool

    def __post_init__(self):
        if len(self) == 0:
            what = f"{self.num_tokens} tokens do not fill one window of {self.max_seq_len}"
            source = self.shards[0].source if self.shards else "dataset"
            raise DataError.at(source, what, "use more text or a smaller max_seq_len", SEE)

    def __len__(self) -> int:
        return self.num_tokens // self.max_seq_len

    def __getitem__(self, index: int) -> dict:
        """Window `index`, counted from the end if negative; IndexError beyond the last."""
        import torch

        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        start = index % len(self) * self.max_seq_len
        window = torch.from_numpy(self._tokens(start, start + self.max_seq_len))
        return {"input_ids": window, "labels": window.clone()}

    @property
    def num_tokens(self) -> int:
        return int(self._ends[-1])

    @property
    def num_documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def max_token_id(self) -> int:
        return max(shard.max_token_id for shard in self.shards)

    def check_vocab(self, vocab_size: int) -> None:
        """DataError, with the files, if a token has no row in an embedding of `vocab_size`."""
        fix = "tokenize with the tokenizer of this model, or raise model.vocab_size"
        wrong = [
            Problem(
                "DataError", str(s.source), None, None, "", f"token id {s.max_token_id}, {vocab_size} rows", fix, SEE
            )
            for s in self.shards
            if s.max_token_id >= vocab_size
        ]
        if wrong:
            raise DataError(wrong)

    @cached_property
    def _ends(self) -> np.ndarray:
        """Where each shard ends in the concatenation, after a leading zero: [shards + 1]."""
        return np.cumsum([0, *(shard.length for shard in self.shards)])

    @cached_property
    def _arrays(self) -> Sequence[np.ndarray]:
        return [np.load(shard.tokens, mmap_mode="r") for shard in self.shards]

    def _tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens `start` to `stop` of the concatenation, as a fresh int64 array."""
        first, last = np.searchsorted(self._ends, (start, stop - 1), side="right") - 1
        pieces = [self._arrays[i][max(start - self._ends[i], 0) : stop - self._ends[i]] for i in range(first, last + 1)]
        return np.concatenate(pieces, dtype=np.int64)

    def __getstate__(self) -> dict:
        """Without the open files: each process that loads data maps them itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_arrays"}

"""Initial values of one tensor, chunk by chunk: each chunk a pure function of seed, tensor name and chunk number.

A normal value is a 16-bit random word looked up in a table of 65,536 quantiles already in the tensor's dtype, which is
four times as fast as drawing normals and lets the interpreter run other threads meanwhile. The table ends at 4.3
standard deviations and holds the exact variance; a tensor has no more than 65,536 distinct values.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from statistics import NormalDist

import numpy as np
import torch

from eulerstack.modeling.initial import Constant, Normal, Rule, Sampled

CHUNK = 1 << 19  # values of a normal or constant tensor made at once
BLOCK = 1 << 16  # values looked up at once, so that words and results stay in the processor's cache
WORDS = 1 << 16
SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Planned:
    """A tensor to be: its name in the checkpoint, shape, dtype, and the rule it is drawn by."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    rule: Rule

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.elements * self.dtype.itemsize

    @property
    def chunks(self) -> int:
        """How many chunks `chunk` makes it in; a sampled tensor is small and made whole."""
        return 1 if isinstance(self.rule, Sampled) else -(-self.elements // CHUNK)


def chunk(tensor: Planned, seed: int, number: int) -> np.ndarray:
    """The bits of chunk `number` of `tensor`, as a flat array of integers of the dtype's width."""
    if isinstance(tensor.rule, Sampled):
        return _sampled(tensor, _generator(seed, tensor.name, 0))
    count = min(CHUNK, tensor.elements - number * CHUNK)
    if isinstance(tensor.rule, Constant):
        return _bits(torch.full((count,), tensor.rule.value, dtype=tensor.dtype))
    return _normal(tensor, count, _generator(seed, tensor.name, number))


def _generator(seed: int, name: str, number: int) -> np.random.SFC64:
    key = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u8")
    return np.random.SFC64(np.random.SeedSequence([seed, *key.tolist(), number]))


def _normal(tensor: Planned, count: int, generator: np.random.SFC64) -> np.ndarray:
    quantiles = _table(tensor.rule, tensor.dtype)
    values = np.empty(count, quantiles.dtype)
    for start in range(0, count, BLOCK):
        block = values[start : start + BLOCK]
        words = generator.random_raw(-(-block.size // 4)).view(np.uint16)[: block.size]
        quantiles.take(words, out=block, mode="wrap")
    return values


def _sampled(tensor: Planned, generator: np.random.SFC64) -> np.ndarray:
    words = generator.random_raw(-(-tensor.elements // 2)).view(np.uint32)[: tensor.elements]
    uniform = (words >> 8).astype(np.float32) * np.float32(2.0**-24)  # 24 bits: every value below 1
    values = tensor.rule.of(torch.from_numpy(uniform).reshape(tensor.shape))
    return _bits(values.to(tensor.dtype).expand(tensor.shape).contiguous().reshape(-1))


@lru_cache(maxsize=64)
def _table(rule: Normal, dtype: torch.dtype) -> np.ndarray:
    """The bits of the 65,536 equally likely values of a normal of this rule, smallest first."""
    return _bits(torch.from_numpy(_quantiles(rule.truncated) * rule.std).to(dtype))


@lru_cache(maxsize=2)
def _quantiles(truncated: bool) -> np.ndarray:
    """Mid-point quantiles of the unit normal, cut at two deviations if `truncated`; float64."""
    unit = NormalDist()
    low = unit.cdf(-2.0) if truncated else 0.0
    places = (low + (n + 0.5) / WORDS * (1.0 - 2.0 * low) for n in range(WORDS))
    values = np.fromiter(map(unit.inv_cdf, places), np.float64, WORDS)
    return values if truncated else values / values.std()


def _bits(values: torch.Tensor) -> np.ndarray:
    return values.view(SAME_SIZE[values.dtype.itemsize]).numpy()

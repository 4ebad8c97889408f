"""What a memory says of itself: FLOPs as they are counted, and what it looks like small.

Tensors, buffers and bytes are compared with the built ones in tests/modeling/test_memories.py.
"""

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from eulerstack.language.block import Dims
from eulerstack.language.memory import Memory, MemoryParams
from eulerstack.modeling.context import Context

D, P, H = 18, 5, 30
DIMS = Dims(d_model=D, n_heads=3, n_kv_heads=3, head_dim=P, d_ff=9, max_seq_len=64, positional="rope", dtype_bytes=2)
TYPES = ("associative", "neural_memory", "retrieval")
every_type = pytest.mark.parametrize("kind", TYPES)


def memory(kind, hidden=H, update=True, persistence="session") -> Memory:
    params = MemoryParams(hidden=hidden)
    return Memory(type=kind, update_at_inference=update, params=params, persistence=persistence)


def counted(block: Memory, length: int) -> int:
    """FLOPs of the matrix products of a fresh call of `length` tokens."""
    options = block.runtime(DIMS)
    file = import_module(f"eulerstack.modeling.memory_{options.pop('type')}")
    built = file.Memory(SimpleNamespace(hidden_size=D, head_dim=P), 0, **options).eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(torch.randn(1, length, D), Context(torch.arange(length)[None]), None)
    return counter.get_total_flops()


@pytest.mark.parametrize("persistence", ["session", "persistent"])
@pytest.mark.parametrize("length", [1, 7, 23])
@every_type
def test_flops_of_reading(kind, length, persistence):
    block = memory(kind, update=False, persistence=persistence)
    if (kind, persistence) == ("retrieval", "session"):
        assert block.flops(DIMS, length) == 0  # nothing is held
    assert counted(block, length) == length * block.flops(DIMS, length)


@pytest.mark.parametrize("length", [1, 7, 30])
def test_flops_of_retrieval(length):
    block = memory("retrieval")
    assert counted(block, length) == length * block.flops(DIMS, length)
    assert block.flops(DIMS, 30) == block.flops(DIMS, 99)


class Number:
    """A number that counts what is done with it."""

    done = 0

    def __mul__(self, other):
        Number.done += 1
        return self

    __add__ = __sub__ = __rmul__ = __mul__


def times(rows: int, columns: int, x: list) -> list:
    """A matrix of numbers times x; the first product of a row is added to nothing, and counted like the others."""
    out = [Number() for _ in range(rows)]
    for y in out:
        for _ in range(columns):
            y + Number() * x[0]
    return out


def associative_token(heads: int, size: int) -> None:
    for _ in range(heads):
        state, k, q, step = [[Number()] * size] * size, [Number()] * size, [Number()] * size, Number()
        error = [step * (Number() - s) for s in times(size, size, k)]
        for row, e in zip(state, error, strict=True):
            for s, feature in zip(row, k, strict=True):
                s + e * feature
        times(size, size, q)


def neural_token(hidden: int, size: int) -> None:
    k, v, q, keep, inertia, rate = [Number()] * size, [Number()] * size, [Number()] * size, Number(), Number(), Number()
    inner = times(hidden, size, k)
    error = [2.0 * (m - w) for m, w in zip(times(size, hidden, inner), v, strict=True)]
    back = [b * Number() for b in times(hidden, size, error)]
    for left, right in ((back, k), (error, inner)):
        for a in left:
            for b in right:
                momentum = inertia * Number() - rate * (a * b)
                keep * Number() + momentum
    times(size, hidden, times(hidden, size, q))


@pytest.mark.parametrize(
    ("kind", "hidden", "token"),
    [
        ("associative", 30, lambda: associative_token(6, 5)),
        ("associative", 14, lambda: associative_token(2, 7)),
        ("neural_memory", 11, lambda: neural_token(11, P)),
    ],
)
def test_flops_of_writing(kind, hidden, token):
    block = memory(kind, hidden)
    projections = sum(2 * s[0] * s[1] for name, s in block.tensors(DIMS).items() if name.endswith("_proj.weight"))
    Number.done = 0
    token()
    assert block.flops(DIMS, 1) == block.flops(DIMS, 99) == projections + Number.done


@every_type
def test_small(kind):
    small = replace(DIMS, d_model=16, head_dim=4, max_seq_len=32)
    shrunk = memory(kind, 2048).shrunk(DIMS, small)
    assert shrunk == memory(kind, 8 if kind == "retrieval" else 16)
    assert shrunk.completed(small) == shrunk
    assert memory(kind, 3).shrunk(DIMS, small) == memory(kind, 3)


def test_what_is_only_read_keeps_nothing():
    for kind in TYPES:
        assert memory(kind, update=False).state_bytes(DIMS) == memory(kind, update=False).kv_cache_bytes(DIMS, 9) == 0

"""Initial weights streamed into safetensors files: drawn in chunks on all cores, hashed and written in order.

Memory is a few chunks whatever the size of the model, and the bytes depend on the seed alone, not on the number of
threads. The safetensors library writes only what is in memory, so the header is written here; the format is eight
bytes of header length, a JSON header of names, dtypes, shapes and offsets, and the tensors without gaps.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from eulerstack.export.draws import Planned, chunk
from eulerstack.export.files import FileRecord, write_bytes

SHARD_BYTES = 5_000_000_000
FLUSH_BYTES = 64 << 20  # the disk starts on written bytes this often, rather than when all are written
INDEX = "model.safetensors.index.json"
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
Progress = Callable[[int, int], None]  # (bytes done, bytes in all)


def write_weights(
    tensors: Iterable[Planned],
    folder: Path,
    *,
    seed: int,
    threads: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> dict[str, FileRecord]:
    """Draw and write `tensors` into the existing `folder`; returns file name -> record of every file written.

    One `model.safetensors`, or numbered shards of at most `shard_bytes` of tensors (a larger tensor has a shard of its
    own) with an index. Every file is on disk, not just in the system's cache, when this returns.
    """
    shards = _shards(sorted(tensors, key=lambda t: -t.dtype.itemsize), shard_bytes)  # wide first: all stay aligned
    names = _names(len(shards))
    total = sum(t.size for shard in shards for t in shard)
    workers = threads or os.cpu_count() or 1
    records, done = {}, 0
    with ThreadPoolExecutor(workers) as pool:
        for name, shard in zip(names, shards, strict=True):
            work = (partial(chunk, t, seed, n) for t in shard for n in range(t.chunks))
            values = _in_order(pool, work, 2 * workers + 1)
            records[name] = _write_shard(header(shard), values, folder / name, partial(_tell, progress, done, total))
            done += sum(t.size for t in shard)
    if len(shards) > 1:
        where = {t.name: name for name, shard in zip(names, shards, strict=True) for t in shard}
        records[INDEX] = write_bytes(folder / INDEX, _index(where, total).encode())
    return records


def _tell(progress: Progress | None, before: int, total: int, done: int) -> None:
    if progress is not None:
        progress(before + done, total)


def _shards(tensors: list[Planned], limit: int) -> list[list[Planned]]:
    shards, size = [[]], 0
    for tensor in tensors:
        if shards[-1] and size + tensor.size > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size
    return shards


def _names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]


def _index(where: dict[str, str], total: int) -> str:
    return json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2, sort_keys=True) + "\n"


def header(tensors: list[Planned]) -> bytes:
    """The head of a safetensors file of these tensors, in this order, padded so that the data is aligned."""
    entries, start = {"__metadata__": {"format": "pt"}}, 0
    for t in tensors:
        offsets = [start, start + t.size]
        entries[t.name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": offsets}
        start += t.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_shard(head: bytes, chunks: Iterable, path: Path, tell: Callable[[int], None]) -> FileRecord:
    digest, size, flushed = hashlib.sha256(head), len(head), 0
    with path.open("wb") as file, ThreadPoolExecutor(1) as disk:
        file.write(head)
        flush = disk.submit(os.fsync, file.fileno())
        for values in chunks:
            digest.update(values)
            file.write(values)
            size += values.nbytes
            tell(size - len(head))
            if size - flushed > FLUSH_BYTES and flush.done():
                flush.result()  # a failure to reach the disk is told once only
                flush, flushed = disk.submit(os.fsync, file.fileno()), size
        flush.result()
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(digest.hexdigest(), size)


def _in_order(pool: ThreadPoolExecutor, work: Iterable[Callable], ahead: int) -> Iterator:
    """The results of `work`, in its order, with at most `ahead` of them made or being made."""
    waiting = deque()
    for job in work:
        waiting.append(pool.submit(job))
        if len(waiting) == ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()

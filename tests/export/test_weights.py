import hashlib
import json
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from eulerstack.export.draws import CHUNK, Planned, chunk
from eulerstack.export.weights import write_weights
from eulerstack.modeling.initial import Constant, Normal, Sampled

TENSORS = [
    Planned("model.embed.weight", (1031, 1019), torch.bfloat16, Normal(0.02)),
    Planned("model.norm.weight", (1019,), torch.bfloat16, Constant(1.0)),
    Planned("model.router.correction_bias", (7,), torch.float32, Constant(0.0)),
    Planned("model.dt_bias", (13,), torch.bfloat16, Sampled(lambda u: (u + 1).log())),
    Planned("model.half", (3, 5), torch.float16, Normal(1.0, truncated=True)),
    Planned("model.scalar", (), torch.float32, Constant(0.5)),
]


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_library_reads_what_was_written(tmp_path):
    records = write_weights(TENSORS, tmp_path, seed=3)
    assert {name: record.sha256 for name, record in records.items()} == digests(tmp_path)
    assert records["model.safetensors"].size == (tmp_path / "model.safetensors").stat().st_size
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        got = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    assert {(name, tuple(t.shape), t.dtype) for name, t in got.items()} == {(t.name, t.shape, t.dtype) for t in TENSORS}
    assert torch.equal(got["model.norm.weight"], torch.ones(1019, dtype=torch.bfloat16))
    assert torch.equal(got["model.scalar"], torch.tensor(0.5))
    for tensor in TENSORS:
        want = torch.cat([torch.from_numpy(chunk(tensor, 3, n)) for n in range(tensor.chunks)]).view(tensor.dtype)
        assert torch.equal(got[tensor.name].flatten(), want), tensor.name


def test_every_tensor_is_aligned(tmp_path):
    write_weights(TENSORS, tmp_path, seed=3)
    data = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    sizes = {t.name: t.dtype.itemsize for t in TENSORS}
    assert [(8 + length + entries[name]["data_offsets"][0]) % size for name, size in sizes.items()] == [0] * len(sizes)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bytes_do_not_depend_on_the_number_of_threads(tmp_path, threads):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    before = torch.get_num_threads()
    try:
        write_weights(TENSORS, tmp_path / "a", seed=7, threads=3)
        torch.set_num_threads(threads)
        write_weights(TENSORS, tmp_path / "b", seed=7, threads=threads)
    finally:
        torch.set_num_threads(before)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_bytes_depend_on_the_seed(tmp_path):
    records = [write_weights(TENSORS, tmp_path, seed=seed)["model.safetensors"].sha256 for seed in (1, 2, 1)]
    assert records[0] != records[1]
    assert records[0] == records[2]


def test_shards_and_index(tmp_path):
    tensors = [Planned(f"layer.{i}", (100, 10 + i), torch.bfloat16, Normal(1.0)) for i in range(5)]
    records = write_weights(tensors, tmp_path, seed=0, shard_bytes=5_000)
    shards = sorted(name for name in records if name.endswith("safetensors"))
    assert shards == [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.size for t in tensors)
    assert set(index["weight_map"]) == {t.name for t in tensors}
    (tmp_path / "one").mkdir()
    write_weights(tensors, tmp_path / "one", seed=0)
    whole = load_file(tmp_path / "one" / "model.safetensors")
    for name, shard in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / shard)[name], whole[name])
    assert all(sum(t.nbytes for t in load_file(tmp_path / s).values()) <= 5_000 for s in shards)


def test_a_tensor_above_the_limit_has_a_shard_of_its_own(tmp_path):
    tensors = [Planned(name, (n,), torch.float32, Normal(1.0)) for name, n in (("a", 10), ("b", 500), ("c", 10))]
    write_weights(tensors, tmp_path, seed=0, shard_bytes=100)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 3


def test_progress_counts_every_byte_once(tmp_path):
    told = []
    tensors = [Planned(f"t{i}", (CHUNK + 1,), torch.bfloat16, Normal(1.0)) for i in range(3)]
    total = sum(t.size for t in tensors)
    write_weights(tensors, tmp_path, seed=0, shard_bytes=2 * CHUNK + 2, progress=lambda *now: told.append(now))
    done = [now for now, _ in told]
    assert done == sorted(set(done))
    assert told[-1] == (total, total)
    assert {of for _, of in told} == {total}


def test_a_failing_draw_is_not_swallowed(tmp_path):
    def fail(uniform):
        raise ArithmeticError("no such value")

    bad = Planned("bad", (3,), torch.float32, Sampled(fail))
    with pytest.raises(ArithmeticError, match="no such value"):
        write_weights([*TENSORS, bad], tmp_path, seed=0)


MEASURE = """
import resource, sys, tempfile, pathlib, torch
from eulerstack.export.draws import Planned
from eulerstack.export.weights import write_weights
from eulerstack.modeling.initial import Normal
def grow(values):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        write_weights([Planned("w", (values,), torch.bfloat16, Normal(1.0))], pathlib.Path(folder), seed=0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
grow(1 << 20)
print(grow(96 << 20))
"""


def test_memory_is_a_few_chunks(tmp_path):
    """192 MiB of weights, after a first small export has loaded everything, add less than a tenth of their size."""
    unit = 1024 if sys.platform == "linux" else 1
    run = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, timeout=120)
    assert int(run.stdout) * unit < 19 << 20

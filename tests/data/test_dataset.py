import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from eulerstack.data.dataset import Shard, TokenizedDataset
from eulerstack.errors import DataError


@pytest.fixture
def dataset(tmp_path):
    """`dataset(lengths, window)`: shards that count on from 0, so that token i of the row is i."""

    def dataset(lengths, window):
        shards, start = [], 0
        for i, length in enumerate(lengths):
            np.save(tmp_path / f"{i}.npy", np.arange(start, start + length, dtype="<u2"))
            top = start + length - 1 if length else -1
            shards.append(Shard(Path(f"source{i}"), tmp_path / f"{i}.npy", 1, length, top))
            start += length
        return TokenizedDataset(tuple(shards), window, "digest", False)

    return dataset


@pytest.mark.parametrize("lengths", [[23], [3, 20], [5, 5, 13], [1, 0, 2, 0, 0, 19, 1], [0, 23], [7, 0, 0, 16]])
@pytest.mark.parametrize("window", [1, 5, 7, 23])
def test_windows_run_through_all_shards(dataset, lengths, window):
    data = dataset(lengths, window)
    assert data.num_tokens == 23
    assert len(data) == 23 // window
    for i in range(len(data)):
        expected = torch.arange(i * window, (i + 1) * window)
        assert torch.equal(data[i]["input_ids"], expected)
        assert torch.equal(data[i]["labels"], expected)
        assert data[i]["input_ids"].dtype == torch.int64


def test_it_is_a_sequence(dataset):
    data = dataset([11, 9], 3)
    assert torch.equal(data[-1]["input_ids"], data[len(data) - 1]["input_ids"])
    assert len(list(data)) == len(data) == 6
    for index in (6, -7):
        with pytest.raises(IndexError):
            data[index]


def test_labels_can_be_changed_without_the_input(dataset):
    item = dataset([9], 3)[0]
    item["labels"][:] = -100
    assert item["input_ids"].tolist() == [0, 1, 2]


def test_it_is_read_from_disk_and_pickled_without_its_tokens(dataset):
    data = dataset([20_000, 10_000], 100)
    data[0]
    assert all(isinstance(array, np.memmap) for array in data._arrays)
    packed = pickle.dumps(data)
    assert len(packed) < 2000
    assert torch.equal(pickle.loads(packed)[250]["input_ids"], data[250]["input_ids"])


def test_a_loader_takes_it(dataset):
    batch = next(iter(torch.utils.data.DataLoader(dataset([40], 5), batch_size=3)))
    assert batch["input_ids"].shape == batch["labels"].shape == (3, 5)


def test_too_little_text_for_one_window(dataset):
    with pytest.raises(DataError, match="source0: DataError: 7 tokens do not fill one window of 8"):
        dataset([3, 4], 8)


def test_a_token_without_a_row_is_an_error_with_its_file(dataset):
    data = dataset([10, 10, 10], 5)
    data.check_vocab(30)
    with pytest.raises(DataError) as caught:
        data.check_vocab(19)
    assert [(p.path, p.what) for p in caught.value.problems] == [
        ("source1", "token id 19, 19 rows"),
        ("source2", "token id 29, 19 rows"),
    ]
    assert data.max_token_id == 29

"""What is loaded from a file computes as what was never saved, wherever the file's header ends."""

import torch

from eulerstack.training.subject import own_memory

LINE = 64  # bytes; torch's own memory starts at a multiple


def from_file(offset: int) -> torch.Tensor:
    """Numbers as safetensors gives them: a view of the file's bytes."""
    return torch.zeros(LINE, dtype=torch.uint8)[offset : offset + 16].view(torch.float32)


def test_every_tensor_gets_memory_of_its_own():
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(from_file(8))
    model.tied = model.weight
    model.register_buffer("start", from_file(24))
    with torch.no_grad():
        model.weight += torch.arange(4.0)
    assert model.weight.data_ptr() % LINE == 8
    assert own_memory(model) is model
    assert model.weight.data_ptr() % LINE == model.start.data_ptr() % LINE == 0
    assert model.weight.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert model.tied is model.weight

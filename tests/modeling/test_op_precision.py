import torch

from eulerstack.modeling.op_precision import own_precision, wide


def test_wide_is_at_least_float32():
    kinds = [wide(torch.zeros(1, dtype=d)).dtype for d in (torch.bfloat16, torch.float16, torch.float32, torch.float64)]
    assert kinds == [torch.float32, torch.float32, torch.float32, torch.float64]


def test_autocast_leaves_what_has_its_own_precision():
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with own_precision(x.device):
            assert (x @ x).dtype == torch.float32


def test_a_device_without_autocast_has_nothing_to_leave():
    with own_precision(torch.device("meta")):
        pass

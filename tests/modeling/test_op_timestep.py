import torch
from torch.nn import functional as F

from eulerstack.modeling.op_timestep import STEP_MAX, STEP_MIN, log_counts, step_bias, step_sizes


def test_padding_takes_no_step():
    logits = torch.randn(2, 3, 4)
    keep = torch.tensor([[True, False, True], [False, True, True]])
    steps = step_sizes(logits, keep)
    assert (steps[~keep] == 0).all()
    torch.testing.assert_close(steps[keep], F.softplus(logits)[keep])
    torch.testing.assert_close(step_sizes(logits, None), F.softplus(logits))


def test_first_steps_are_log_uniform():
    uniform = (torch.arange(1001, dtype=torch.float64) / 1001)[:, None]
    logs = F.softplus(step_bias(uniform)).log10().squeeze()
    torch.testing.assert_close(logs, torch.linspace(-3, -1, 1002, dtype=torch.float64)[:-1], atol=1e-9, rtol=0)
    assert (STEP_MIN, STEP_MAX) == (1e-3, 1e-1)


def test_decays_count_along_the_last_axis():
    assert log_counts(torch.rand(3, 4)).exp().tolist() == torch.tensor([[1.0, 2, 3, 4]] * 3).log().exp().tolist()

import pytest
import torch
from torch import nn

from eulerstack.modeling.op_linear import matrix_of


class Adapted(nn.Module):
    """A matrix and what was learned beside it, under the names an adapter shows."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base

    @property
    def weight(self) -> torch.Tensor:
        return self.base.weight

    @property
    def bias(self) -> torch.Tensor | None:
        return self.base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x.sum(-1, keepdim=True)


def test_a_plain_layer_is_its_matrix():
    linear = nn.Linear(3, 5)
    assert matrix_of(linear) is linear.weight


@pytest.mark.parametrize("around", ["adapter", "hook", "pre-hook", "offloader"])
def test_what_stands_around_a_layer_is_seen(around):
    linear = nn.Linear(3, 5)
    if around == "hook":
        linear.register_forward_hook(lambda module, args, y: y + 1)
    elif around == "pre-hook":
        linear.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    elif around == "offloader":
        linear.forward = lambda x: nn.Linear.forward(linear, x)
    assert matrix_of(Adapted(linear) if around == "adapter" else linear) is None


@pytest.mark.parametrize("policy", ["uniform", "layered_safe"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_head_with_an_adapter_is_called(build, payload, block, policy, dtype):
    model = build(payload(block(), dtype_policy=policy), dtype)
    ids = torch.arange(2, 13)[None]
    with torch.no_grad():
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state.to(dtype)
        model.lm_head = Adapted(model.lm_head)
        want, got = model.lm_head(hidden), model(input_ids=ids, use_cache=False).logits
    assert got.dtype == (torch.float32 if policy == "layered_safe" and dtype == torch.bfloat16 else dtype)
    assert torch.equal(got, want.to(got.dtype))

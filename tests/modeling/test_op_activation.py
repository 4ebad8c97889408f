import math

import pytest
import torch

from eulerstack.modeling.op_activation import activation

FORMULAS = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "swiglu": lambda x: x / (1 + math.exp(-x)),
    "geglu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_activation_is_its_formula(name):
    x = torch.linspace(-4, 4, 41, dtype=torch.float64)
    want = torch.tensor([FORMULAS[name](v) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(activation(name)(x), want, rtol=1e-12, atol=1e-12)


def test_unknown_activation_names_the_known_ones():
    with pytest.raises(ValueError, match="'silu'; one of geglu, gelu, gelu_tanh, relu, relu2, swiglu"):
        activation("silu")

import math
import pickle

import pytest
import torch

from eulerstack.modeling.op_activation import activation, gating

FORMULAS = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
}
GATES = FORMULAS | {
    "swiglu": lambda x: x / (1 + math.exp(-x)),
    "geglu": FORMULAS["gelu"],
}


def clamped(gate, up):
    gate, up = min(gate, 7.0), max(min(up, 7.0), -7.0)
    return (up + 1) * gate / (1 + math.exp(-1.702 * gate))


GATED = {name: lambda gate, up, act=act: act(gate) * up for name, act in GATES.items()} | {"swiglu_clamped": clamped}


@pytest.mark.parametrize("name", FORMULAS)
def test_an_activation_is_its_formula(name):
    x = torch.linspace(-4, 4, 41, dtype=torch.float64)
    want = torch.tensor([FORMULAS[name](v) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(activation(name)(x), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", GATED)
def test_a_gate_is_its_formula(name):
    gate, up = torch.cartesian_prod(*[torch.linspace(-11, 11, 45, dtype=torch.float64)] * 2).T
    want = [GATED[name](*pair) for pair in zip(gate.tolist(), up.tolist(), strict=True)]
    torch.testing.assert_close(gating(name)(gate, up), torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", GATED)
def test_a_gate_keeps_the_dtype_and_can_be_pickled(name, dtype):
    gate, up = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    y = gating(name)(gate, up)
    assert y.dtype == dtype
    assert torch.equal(pickle.loads(pickle.dumps(gating(name)))(gate, up), y)


def test_beyond_the_clamps_nothing_is_learned():
    gate = torch.tensor([8.0, 6.0, -9.0, 3.0], requires_grad=True)
    up = torch.tensor([1.0, 7.5, -8.0, 2.0], requires_grad=True)
    gating("swiglu_clamped")(gate, up).sum().backward()
    assert (gate.grad != 0).tolist() == [False, True, True, True]
    assert (up.grad != 0).tolist() == [True, False, False, True]


def test_an_unknown_name_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'silu'; one of gelu, gelu_tanh, relu, relu2$"):
        activation("silu")
    with pytest.raises(ValueError, match=r"'swiglu'; one of gelu, gelu_tanh, relu, relu2$"):
        activation("swiglu")
    with pytest.raises(ValueError, match=r"'silu'; one of geglu, gelu, gelu_tanh, .*, swiglu, swiglu_clamped$"):
        gating("silu")

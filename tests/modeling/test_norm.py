import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eulerstack.modeling.initial import Constant, Init
from eulerstack.modeling.norm import LayerNorm, RMSNorm, build_norm


@pytest.fixture
def x():
    return torch.randn(3, 5, 13, generator=torch.Generator().manual_seed(0)) * 4 + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("theirs", "offset"), [(LlamaRMSNorm, False), (Gemma2RMSNorm, True)])
def test_rmsnorm_is_that_of_transformers(x, dtype, theirs, offset):
    ours, theirs = RMSNorm(13, 1e-3, offset).to(dtype), theirs(13, 1e-3).to(dtype)
    with torch.no_grad():
        ours.weight.copy_(torch.linspace(-0.5, 0.7, 13))
        theirs.weight.copy_(torch.linspace(-0.5, 0.7, 13))
    assert torch.equal(ours(x.to(dtype)), theirs(x.to(dtype)))


@pytest.mark.parametrize("bias", [True, False])
def test_layernorm_formula(x, bias):
    norm = LayerNorm(13, 1e-3, bias).double()
    with torch.no_grad():
        for p in norm.parameters():
            p.copy_(torch.linspace(-1, 2, 13))
    x = x.double()
    shift = torch.linspace(-1, 2, 13).double() if bias else 0.0
    centred = x - x.mean(-1, keepdim=True)
    want = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight + shift
    assert torch.allclose(norm(x), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("offset", [False, True])
def test_wide_input_through_narrow_weights_stays_wide(x, kind, offset):
    norm = build_norm(13, 1e-3, {"type": kind, "unit_offset": offset, "bias": True}).to(torch.bfloat16)
    assert norm(x).dtype == torch.float32
    assert norm(x.double()).dtype == torch.float64


def test_statistics_are_wide():
    big = torch.full((1, 13), 300.0, dtype=torch.float16)  # its square is infinite in half precision
    assert torch.isfinite(RMSNorm(13, 1e-5).half()(big)).all()


def test_rules_start_as_the_identity_scale():
    init = Init("normal", 0.02, 3)
    assert RMSNorm(4, 1e-5).initial(init) == {"weight": Constant(1.0)}
    assert RMSNorm(4, 1e-5, True).initial(init) == {"weight": Constant(0.0)}
    assert LayerNorm(4, 1e-5).initial(init) == {"weight": Constant(1.0), "bias": Constant(0.0)}
    assert LayerNorm(4, 1e-5, False).initial(init) == {"weight": Constant(1.0)}


def test_unknown_type_is_refused():
    with pytest.raises(ValueError, match="batchnorm"):
        build_norm(4, 1e-5, {"type": "batchnorm"})

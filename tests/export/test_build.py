import math

import numpy as np
import pytest
import torch

from eulerstack.errors import CompileError
from eulerstack.export.build import build, build_on_meta, model_class, plan
from eulerstack.export.draws import chunk
from eulerstack.modeling.initial import Constant, Normal


def drawn(tensor) -> torch.Tensor:
    bits = np.concatenate([chunk(tensor, 0, n) for n in range(tensor.chunks)])
    return torch.from_numpy(bits).view(tensor.dtype).reshape(tensor.shape)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Two-sample Kolmogorov-Smirnov: the largest gap between two empirical distributions."""
    both = torch.cat([a, b]).sort().values
    cdfs = [torch.searchsorted(x.sort().values, both, right=True) / len(x) for x in (a, b)]
    return (cdfs[0] - cdfs[1]).abs().max().item()


def test_the_plan_is_the_checkpoint(payload):
    model = build_on_meta(payload())
    tensors = {t.name: t for t in plan(model)}
    assert "lm_head.weight" not in tensors
    assert set(model.state_dict()) - {"lm_head.weight"} == set(tensors)
    assert sum(p.numel() for p in model.parameters()) == sum(t.elements for t in tensors.values()) - 3
    bias = tensors["model.layers.1.ffn.router.correction_bias"]
    assert (bias.dtype, bias.shape, bias.rule) == (torch.float32, (3,), Constant(0.0))
    assert {t.dtype for name, t in tensors.items() if name != bias.name} == {torch.bfloat16}


def test_an_untied_head_is_in_the_plan(payload):
    names = [t.name for t in plan(build_on_meta(payload(tie_word_embeddings=False)))]
    assert names.count("lm_head.weight") == 1


def test_nothing_is_allocated_and_the_default_dtype_stays(payload):
    model = build_on_meta(payload())
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("scheme", ["normal", "truncated_normal", "scaled_residual", "mup"])
def test_every_tensor_is_distributed_as_torch_draws_it(payload, scheme):
    """Against the weights that the class itself draws, at the 0.01 % level of a two-sample test."""
    config = payload(init={"scheme": scheme, "std": 0.05}, dtype="float32")
    torch.manual_seed(0)
    theirs = build(config).state_dict()
    kinds = set()
    for tensor in plan(build_on_meta(config)):
        mine, other = drawn(tensor), theirs[tensor.name]
        kinds.add(type(tensor.rule))
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        if isinstance(tensor.rule, Normal):
            assert distance(mine.flatten(), other.flatten()) < 2.23 * math.sqrt(2 / mine.numel()), tensor.name
        else:
            assert torch.equal(mine, other), tensor.name
    assert kinds == {Normal, Constant}


def test_the_residual_projections_are_scaled(payload):
    rules = {t.name: t.rule for t in plan(build_on_meta(payload(init={"scheme": "scaled_residual", "std": 0.05})))}
    assert rules["model.layers.0.mixer.o_proj.weight"].std == pytest.approx(0.05 / math.sqrt(6))
    assert rules["model.layers.0.mixer.q_proj.weight"].std == 0.05


def test_a_tensor_without_a_rule_is_named(payload):
    model = build_on_meta(payload())
    model.model.layers[2].register_parameter("stray", torch.nn.Parameter(torch.empty(3, device="meta")))
    with pytest.raises(CompileError, match=r"model\.layers\.2\.stray"):
        plan(model)


def test_classes_are_those_of_the_entry_file(payload):
    cls = model_class(payload())
    assert (cls.__name__, cls.backbone.__name__) == ("EulerStackForCausalLM", "EulerStackModel")
    assert set(cls.parts) == set(cls.backbone.parts) == {"mixer_attention", "ffn_gated_mlp", "ffn_moe"}


def test_a_part_without_a_file_is_an_error(payload):
    config = payload()
    config["blocks"]["dense"]["mixer"]["type"] = "wishful"
    with pytest.raises(CompileError, match=r"mixer_wishful\.py"):
        model_class(config)

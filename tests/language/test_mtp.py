"""The arithmetic of the extra prediction heads against the model that is built."""

import pytest
import torch

from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.build import build_on_meta
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.ir.shrink import shrink
from eulerstack.ir.tensors import buffers, parameters
from eulerstack.language.mtp import Mtp

MOE = {"experts": 3, "top_k": 1, "bias_correction": {"enabled": True}}


def tree(**mtp) -> dict:
    """A model whose heads have experts and whose layers have none."""
    return {
        "schema_version": 1,
        "model": {"name": "heads", "d_model": 24, "vocab_size": 270, "max_seq_len": 64, "n_heads": 4},
        "tokenizer_contract": {"type": "byte_bpe"},
        "embedding": {"type": "learned", "positional": "rope"},
        "layer_templates": {
            "plain": {"mixer": {"type": "attention"}, "ffn": {"type": "gated_mlp"}},
            "routed": {"mixer": {"type": "mamba", "mamba": {"head_dim": 8}}, "ffn": {"type": "moe", "moe": MOE}},
        },
        "layer_schedule": [{"template": "plain", "repeat": 2}],
        "head": {"type": "causal_lm_mtp", "mtp": {"head_template": "routed"} | mtp},
    }


@pytest.mark.parametrize(("n", "layers"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("norm", [{"type": "layernorm"}, {"position": "post"}])
def test_predicted_tensors_are_the_built_ones(n, layers, norm):
    given = tree(n_predict=n, head_layers=layers)
    given["layer_templates"]["plain"]["norm"] = norm
    ir = normalize_to_ir(given)
    model = build_on_meta(runtime_config(ir))
    built = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert parameters(ir) == built
    assert buffers(ir).keys() == {name for name, _ in model.named_buffers()}
    assert len(buffers(ir)) == n * layers
    assert any(name.startswith(f"mtp.heads.{n - 1}.layers.{layers - 1}.") for name in built)


def test_a_token_uses_none_of_the_heads():
    found, ir = costs(normalize_to_ir(tree())), normalize_to_ir(tree())
    heads = sum(torch.Size(shape).numel() for name, shape in parameters(ir).items() if name.startswith("mtp."))
    assert found.total - found.active == heads > 0


def test_the_small_variant_has_at_most_two_of_two():
    small = shrink(normalize_to_ir(tree(n_predict=5, head_layers=3)))
    assert (small.head.mtp.n_predict, small.head.mtp.head_layers) == (2, 2)
    assert small.head.mtp.head_template == small.mtp_layer.template == "routed"
    few = Mtp(head_template="routed")
    assert few.shrunk() == few


def test_budgets_of_the_small_variant_keep_their_share():
    given = tree() | {"execution_modes": [{"name": name, "max_tokens": n} for name, n in (("a", 500), ("b", 9))]}
    given["model"]["max_seq_len"] = 2048
    small = shrink(normalize_to_ir(given))
    assert [mode.max_tokens for mode in small.execution_modes] == [500 * 64 // 2048, 2]

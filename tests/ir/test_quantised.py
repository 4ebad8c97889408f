"""What quantisation-aware training reaches by names and shapes is what it reaches in the model."""

import pytest

from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.build import build_on_meta
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.ir.quantised import quantisable, scoped
from eulerstack.ir.shrink import shrink
from eulerstack.ir.tensors import parameters
from eulerstack.modeling import fake_quant

SHAPES = {
    "model.embed_tokens.weight": (9, 4),
    "model.layers.0.mixer.q_proj.weight": (4, 4),
    "model.layers.0.mixer.q_proj.bias": (4,),
    "model.layers.0.mixer.conv1d.weight": (4, 1, 3),
    "model.layers.0.mixer_norm.weight": (4,),
    "model.layers.0.ffn.router.weight": (2, 4),
    "model.layers.0.ffn.experts.down_proj": (2, 4, 3),
    "lm_head.weight": (9, 4),
}
Q, DOWN = "model.layers.0.mixer.q_proj.weight", "model.layers.0.ffn.experts.down_proj"


@pytest.mark.parametrize(
    ("scope", "names", "idle"),
    [
        ((), [Q, DOWN], []),
        (("*",), [Q, DOWN, "lm_head.weight"], []),
        (("*.ffn.*", "*.mixer.*"), [Q, DOWN], []),
        (("*.q_proj.weight", "*.q_proj", "*.router.weight"), [Q], ["*.q_proj", "*.router.weight"]),
        (("model.embed_tokens.weight",), [], ["model.embed_tokens.weight"]),
    ],
)
def test_patterns(scope, names, idle):
    assert scoped(SHAPES, scope) == (names, idle)


def test_names_and_shapes_say_what_the_modules_say(catalogue):
    """For every preset: the linear layers and experts that are built are the parameters of this rule."""
    for path in catalogue.values():
        ir = shrink(normalize_to_ir(path))
        model = build_on_meta(runtime_config(ir))
        built = {name for name, *_ in fake_quant.quantisable(model)}
        assert built == {name for name, shape in parameters(ir).items() if quantisable(name, shape)}, path

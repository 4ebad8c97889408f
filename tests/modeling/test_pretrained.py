"""How parameters start, and that what was loaded stays."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from eulerstack.modeling.causal_lm import CausalLM
from eulerstack.modeling.configuration_eulerstack import EulerStackConfig
from eulerstack.modeling.decoder import Decoder
from eulerstack.modeling.initial import Constant, Normal, Sampled


class FFN(nn.Module):
    """A feed-forward part with one parameter of each rule, and a persistent buffer."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.sampled = nn.Parameter(torch.empty(5))
        self.constant = nn.Parameter(torch.empty(4))
        self.normal = nn.Parameter(torch.empty(200, 30))
        self.register_buffer("count", torch.empty(3))

    def initial(self, init):
        half = Sampled(lambda u: 7.0 + u / 2)
        return {"sampled": half, "constant": Constant(3.5), "normal": Normal(0.3), "count": Constant(2.0)}

    def forward(self, x, context):
        return x * self.constant.sum(), None


@pytest.fixture
def entry(part):
    parts = {"mixer_attention": part("mixer_attention"), "ffn_probe": FFN}
    backbone = type("EulerStackModel", (Decoder,), {"parts": parts})
    return type("EulerStackForCausalLM", (CausalLM,), {"parts": parts, "backbone": backbone})


@pytest.fixture
def config(payload, block):
    layer = block(norm={"type": "layernorm"}) | {"ffn": {"type": "probe"}}
    return EulerStackConfig(**payload(layer, layer, hidden_size=200, vocab_size=150, tie_word_embeddings=False))


def test_rules_are_applied(entry, config):
    torch.manual_seed(0)
    ffn = entry(config).model.layers[1].ffn
    assert (ffn.constant == 3.5).all()
    assert (ffn.count == 2.0).all()
    assert ((ffn.sampled >= 7.0) & (ffn.sampled < 7.5)).all()
    assert ffn.sampled.unique().numel() == 5
    assert ffn.normal.std().item() == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize(
    ("scheme", "inner", "out"),
    [
        ("normal", 0.2, 0.2),
        ("scaled_residual", 0.2, 0.2 / math.sqrt(4)),
        ("mup", 200**-0.5, 24**-0.5),
        ("truncated_normal", 0.2 * 0.8796, 0.2 * 0.8796),
    ],
)
def test_schemes(entry, config, scheme, inner, out):
    torch.manual_seed(0)
    config.init = {"scheme": scheme, "std": 0.2}
    model = entry(config)
    mixer = model.model.layers[0].mixer
    assert mixer.q_proj.weight.std().item() == pytest.approx(inner, rel=0.05)
    assert mixer.o_proj.weight.std().item() == pytest.approx(out, rel=0.05)
    assert (mixer.q_proj.bias == 0).all()
    assert (model.model.layers[0].mixer_norm.weight == 1).all()


DROPPED = ("ffn.sampled", "ffn.count", "mixer.q_proj.bias", "mixer_norm.bias", "lm_head.weight")


def test_loading_fills_in_what_is_missing_and_nothing_else(entry, config, tmp_path):
    torch.manual_seed(0)
    model = entry(config)
    with torch.no_grad():
        for t in (*model.parameters(), *model.buffers()):
            t.copy_(torch.rand_like(t) + 20.0)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    stored = {name: t for name, t in load_file(file).items() if not name.endswith(DROPPED)}
    save_file(stored, file, metadata={"format": "pt"})
    again = entry.from_pretrained(tmp_path).state_dict()
    assert set(again) - set(stored) == {name for name in again if name.endswith(DROPPED)}
    for name, t in again.items():
        if name in stored:
            assert torch.equal(t, stored[name]), name
        else:
            assert t.abs().max() < 8.0, name  # started by its rule
    ffn = {name.rpartition(".")[2]: t for name, t in again.items() if ".ffn." in name}
    assert (ffn["count"] == 2.0).all()
    assert ((ffn["sampled"] >= 7.0) & (ffn["sampled"] < 7.5)).all()


def test_the_meta_device_builds_the_same_shapes(entry, config):
    with torch.device("meta"):
        meta = entry(config)
    assert {n: p.shape for n, p in meta.state_dict().items()} == {
        n: p.shape for n, p in entry(config).state_dict().items()
    }

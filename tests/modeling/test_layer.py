"""What each norm position, residual type and scaling computes, written out."""

import pytest
import torch
from torch import nn

from eulerstack.modeling.configuration_eulerstack import EulerStackConfig
from eulerstack.modeling.context import Context
from eulerstack.modeling.layer import DecoderLayer

S = 0.7


class Half(nn.Module):
    """A branch that is easy to write down: tanh of a matrix product."""

    def __init__(self, config, layer_idx, *, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(config.hidden_size, config.hidden_size))

    def of(self, x):
        return torch.tanh(x @ self.weight)


class Mixer(Half):
    def forward(self, x, context, state):
        return self.of(x), {"seen": x} if context.use_cache else None


class FFN(Half):
    def forward(self, x, context):
        return self.of(x), None


@pytest.fixture
def x():
    return torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def context():
    return Context(positions=torch.arange(5).expand(2, 5), use_cache=True)


def layer(payload, position, kind, mixer="half", ffn="half", policy="uniform", dropout=0.0):
    norm = {"type": "rmsnorm", "position": position, "unit_offset": False, "bias": True}
    block = {
        "mixer": {"type": mixer} | ({} if mixer == "none" else {"seed": 1}),
        "ffn": {"type": ffn} | ({} if ffn == "none" else {"seed": 2}),
        "norm": norm,
        "residual": {"type": kind, "scaling": S},
    }
    config = EulerStackConfig(**payload(hidden_size=7, dtype_policy=policy, dropout=dropout))
    made = DecoderLayer(config, 0, block, {"mixer_half": Mixer, "ffn_half": FFN}).double()
    with torch.no_grad():
        for i, (name, p) in enumerate(made.named_parameters()):
            if "norm" in name:
                p.copy_(torch.linspace(0.5, 1.5 + i, 7))
    return made.eval()


def sequential(m, x, position, halves):
    for name, f in halves:
        norm = getattr(m, f"{name}_norm")
        if position == "pre":
            x = x + S * f(norm(x))
        elif position == "post":
            x = norm(x + S * f(x))
        elif position == "sandwich":
            x = x + S * getattr(m, f"{name}_post_norm")(f(norm(x)))
        else:
            x = x + S * norm(f(x))
    return x


def parallel(m, x, position, halves):
    def f(h):
        return sum(half(h) for _, half in halves)

    if position == "pre":
        return x + S * f(m.mixer_norm(x))
    if position == "post":
        return m.mixer_norm(x + S * f(x))
    if position == "sandwich":
        return x + S * m.mixer_post_norm(f(m.mixer_norm(x)))
    return x + S * m.mixer_norm(f(x))


POSITIONS = ["pre", "post", "sandwich", "post_branch"]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", ["sequential", "parallel"])
@pytest.mark.parametrize(("mixer", "ffn"), [("half", "half"), ("half", "none"), ("none", "half")])
def test_formula(payload, x, context, position, kind, mixer, ffn):
    m = layer(payload, position, kind, mixer, ffn)
    halves = [(name, getattr(m, name).of) for name in ("mixer", "ffn") if hasattr(m, name)]
    y, state, records = m(x, context)
    want = (sequential if kind == "sequential" else parallel)(m, x, position, halves)
    assert torch.allclose(y, want, rtol=0, atol=1e-12)
    assert records == {}
    assert (state is None) is (mixer == "none")


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", ["sequential", "parallel"])
def test_names_of_the_norms(payload, position, kind):
    names = {n for n, _ in layer(payload, position, kind).named_children() if "norm" in n}
    want = {"mixer_norm"} | ({"ffn_norm"} if kind == "sequential" else set())
    want |= {n.replace("_norm", "_post_norm") for n in want} if position == "sandwich" else set()
    assert names == want


@pytest.mark.parametrize("position", POSITIONS)
def test_layered_safe_keeps_the_stream_wide_and_the_branches_narrow(payload, context, x, position):
    m = layer(payload, position, "sequential", policy="layered_safe").to(torch.bfloat16)
    seen = []
    for part in (m.mixer, m.ffn):
        part.register_forward_hook(lambda module, args, out: seen.append((args[0].dtype, out[0].dtype)))
    assert m(x.float(), context)[0].dtype == torch.float32
    assert seen == [(torch.bfloat16, torch.bfloat16)] * 2


def test_dropout_is_on_the_branches_in_training_only(payload, x, context):
    m = layer(payload, "pre", "sequential", dropout=0.5)
    assert torch.equal(m(x, context)[0], m(x, context)[0])
    m.train()
    torch.manual_seed(0)
    y = m(x, context)[0]
    torch.manual_seed(0)
    h = x + S * nn.functional.dropout(m.mixer.of(m.mixer_norm(x)), 0.5)
    want = h + S * nn.functional.dropout(m.ffn.of(m.ffn_norm(h)), 0.5)
    assert torch.allclose(y, want, rtol=0, atol=1e-12)


def test_context_follows_the_device_of_the_input(payload):
    context = Context(positions=torch.arange(5).expand(2, 5), keep=torch.ones(2, 5, dtype=torch.bool))
    seen = []
    m = layer(payload, "pre", "sequential").to("meta")
    m.mixer.register_forward_hook(lambda module, args, out: seen.append(args[1]))
    for _ in range(2):
        m(torch.empty(2, 5, 7, dtype=torch.float64, device="meta"), context)
    assert seen[0].positions.device.type == seen[0].keep.device.type == "meta"
    assert seen[0] is seen[1]
    assert context.positions.device.type == "cpu"

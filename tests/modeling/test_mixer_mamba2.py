"""Mamba-2 against the paper's recurrence written out token by token, and against transformers' own classes."""

import inspect
import re
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from transformers import Mamba2Config, Mamba2ForCausalLM
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer, MambaRMSNormGated

from eulerstack.modeling.initial import Init, rules_of
from eulerstack.modeling.mixer_mamba2 import Mixer

B, T, D = 3, 23, 15
SMALL = {"d_state": 7, "d_conv": 4, "expand": 2, "head_dim": 5, "n_groups": 3, "chunk_size": 8}
SMALL |= {"conv_bias": True, "bias": False}


def mixer(dtype=torch.float64, d_model=D, **changes) -> Mixer:
    torch.manual_seed(0)
    made = Mixer(SimpleNamespace(hidden_size=d_model, rms_norm_eps=1e-5), 0, **SMALL | changes)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.5)
    return made.to(dtype)


def row_by_hand(m: Mixer, row, keep, starts):
    """Mamba-2, section 7, for one sequence: a list of past tokens and one state a head, token by token."""
    p, A, outputs = dict(m.named_parameters()), -m.A_log.exp(), []
    heads, groups, taps = len(A), m.n_groups, m.conv1d.weight.shape[-1]
    fresh = torch.zeros(heads, m.head_dim, m.conv_splits[1] // groups, dtype=row.dtype)
    past, h = [], fresh
    for t, token in enumerate(row):
        if starts[t]:
            past, h = [], fresh
        if not keep[t]:
            outputs.append(torch.zeros_like(token))
            continue
        z, x, dt = (p["in_proj.weight"] @ token + p.get("in_proj.bias", 0)).split(m.splits)
        past.append(x)
        x = sum(p["conv1d.weight"][:, 0, -1 - j] * v for j, v in enumerate(reversed(past[-taps:])))
        x, b, c = F.silu(x + p.get("conv1d.bias", 0)).split(m.conv_splits)
        x = x.view(heads, -1)
        b, c = (v.view(groups, -1).repeat_interleave(heads // groups, 0) for v in (b, c))
        step = F.softplus(dt + p["dt_bias"])[:, None]
        h = (step * A[:, None]).exp()[..., None] * h + (step * x)[..., None] * b[:, None]
        y = ((h * c[:, None]).sum(-1) + p["D"][:, None] * x).flatten() * F.silu(z)
        y = y.view(groups, -1)
        y = (y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten() * p["norm.weight"]
        outputs.append(p["out_proj.weight"] @ y + p.get("out_proj.bias", 0))
    return torch.stack(outputs)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"chunk_size": 256, "n_groups": 1},
        {"bias": True, "conv_bias": False, "d_conv": 2, "expand": 1, "head_dim": 3, "n_groups": 1, "chunk_size": 1},
    ],
)
def test_outputs_and_all_gradients_are_those_of_the_paper(changes, rows):
    m, x = mixer(**changes), rows.tokens(D)
    rows.same(m, x, rows.by_hand(row_by_hand, m, x))


@pytest.mark.parametrize("cuts", [[9, 1, 13], [1] * T], ids=["chunks", "steps"])
def test_pieces_give_the_whole_and_leave_old_states_alone(cuts, rows):
    rows.same_in_pieces(mixer(), rows.tokens(D), cuts)


def test_state_is_returned_only_when_asked_for_and_in_the_promised_shapes(plain):
    m = mixer(torch.bfloat16)
    x = plain.tokens(D, torch.bfloat16)
    assert m(x, plain.context(), None)[1] is None
    y, state = m(x, plain.context(use_cache=True), None)
    assert y.dtype == torch.bfloat16
    assert {k: (v.shape, v.dtype) for k, v in state.items()} == {
        "conv": ((B, 2 * D + 2 * 3 * 7, 3), torch.bfloat16),
        "ssm": ((B, 6, 5, 7), torch.float32),
    }


def test_first_values_follow_the_paper(block, payload, build):
    model = build(payload(block("mamba2", "none", head_dim=1, n_groups=1), hidden_size=20))
    m = model.model.layers[0].mixer
    torch.testing.assert_close(m.A_log.exp(), torch.arange(1.0, 41.0))
    assert (m.D == 1).all()
    assert (m.norm.weight == 1).all()
    steps = F.softplus(m.dt_bias)
    assert steps.min() >= 0.999e-3
    assert steps.max() <= 0.1001
    assert steps.log().std() > 0.8, "log-uniform over two decades has 1.33"
    scaled, plain = (rules_of(m.out_proj, Init(s, 0.02, 8))["weight"].std for s in ("scaled_residual", "normal"))
    assert scaled == plain / 4


def shaken(module):
    torch.manual_seed(2)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3)
    return module.eval()


def close(a, b):
    assert (a - b).abs().max() < 1e-4 * b.std(), (a - b).abs().max() / b.std()


GROUPED = pytest.mark.skipif(
    "group_size" not in inspect.signature(MambaRMSNormGated).parameters,
    reason="this transformers norms all groups together, unlike the paper's code",
)


@pytest.mark.parametrize(("bias", "groups"), [(True, 1), pytest.param(False, 3, marks=GROUPED)])
def test_same_weights_same_outputs_as_transformers_mamba2(bias, groups, plain):
    options = {"n_groups": groups, "head_dim": 5, "expand": 2, "chunk_size": 8}
    config = Mamba2Config(
        hidden_size=D, num_heads=6, state_size=7, conv_kernel=3, use_bias=bias, use_conv_bias=not bias, **options
    )
    theirs = shaken(Mamba2Mixer(config, 0))
    m = mixer(torch.float32, d_conv=3, bias=bias, conv_bias=not bias, **options)
    m.load_state_dict(theirs.state_dict())
    x = plain.tokens(D, torch.float32)
    close(m(x, plain.context(), None)[0], theirs(x))


def test_same_weights_same_logits_as_transformers_mamba2(block, payload, build):
    options = {"n_groups": 1, "head_dim": 5, "expand": 2, "chunk_size": 16}
    config = Mamba2Config(
        vocab_size=67, hidden_size=20, num_heads=8, state_size=3, num_hidden_layers=3, residual_in_fp32=False, **options
    )
    theirs = shaken(Mamba2ForCausalLM(config))
    ours = build(
        payload(block("mamba2", "none", d_state=3, **options), pattern=["kind0"] * 3, tie_word_embeddings=False)
    )
    ours.load_state_dict({renamed(k): v for k, v in theirs.state_dict().items()})
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    ids = torch.randint(67, (2, 37), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        close(ours(input_ids=ids).logits, theirs(input_ids=ids).logits)


def renamed(name: str) -> str:
    """The name here of a parameter of transformers' model; the gated norm inside a mixer keeps its own."""
    name = name.replace("backbone.embeddings", "model.embed_tokens").replace("backbone.norm_f", "model.norm")
    name = re.sub(r"backbone\.layers\.(\d+)\.norm\.", r"model.layers.\1.mixer_norm.", name)
    return name.replace("backbone.", "model.")

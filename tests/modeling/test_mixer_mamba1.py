"""Mamba against the paper's recurrence written out token by token, and against transformers' own classes."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from transformers import JambaConfig, MambaConfig, MambaForCausalLM
from transformers.models.jamba.modeling_jamba import JambaMambaMixer
from transformers.models.mamba.modeling_mamba import MambaMixer

from eulerstack.modeling.initial import Init, rules_of
from eulerstack.modeling.mixer_mamba1 import Mixer

B, T, D = 3, 23, 14
SMALL = {"d_state": 5, "d_conv": 4, "expand": 2, "dt_rank": 3, "conv_bias": True, "bias": False, "inner_norm": False}


def mixer(dtype=torch.float64, d_model=D, **changes) -> Mixer:
    torch.manual_seed(0)
    made = Mixer(SimpleNamespace(hidden_size=d_model, rms_norm_eps=1e-5), 0, **SMALL | changes)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.5)
    return made.to(dtype)


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def row_by_hand(m: Mixer, row, keep, starts):
    """Mamba, section 3 and algorithm 2, for one sequence: a list of past tokens and one state, token by token."""
    p, A, outputs = dict(m.named_parameters()), -m.A_log.exp(), []
    past, h = [], torch.zeros_like(A)
    for t, token in enumerate(row):
        if starts[t]:
            past, h = [], torch.zeros_like(A)
        if not keep[t]:
            outputs.append(torch.zeros_like(token))
            continue
        x, z = (p["in_proj.weight"] @ token + p.get("in_proj.bias", 0)).chunk(2)
        past.append(x)
        x = sum(
            p["conv1d.weight"][:, 0, -1 - j] * v for j, v in enumerate(reversed(past[-m.conv1d.weight.shape[-1] :]))
        )
        x = F.silu(x + p.get("conv1d.bias", 0))
        dt, b, c = (p["x_proj.weight"] @ x).split(m.splits)
        if "dt_norm.weight" in p:
            dt, b, c = (rms(v, p[f"{name}_norm.weight"]) for name, v in (("dt", dt), ("b", b), ("c", c)))
        step = F.softplus(p["dt_proj.weight"] @ dt + p["dt_proj.bias"])
        h = (step[:, None] * A).exp() * h + (step * x)[:, None] * b
        outputs.append(p["out_proj.weight"] @ ((h @ c + p["D"] * x) * F.silu(z)) + p.get("out_proj.bias", 0))
    return torch.stack(outputs)


@pytest.mark.parametrize(
    "changes", [{}, {"inner_norm": True}, {"bias": True, "conv_bias": False, "d_conv": 2, "expand": 1}]
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
        "conv": ((B, 2 * D, 3), torch.bfloat16),
        "ssm": ((B, 2 * D, 5), torch.float32),
    }


def test_first_values_follow_the_paper(block, payload, build):
    model = build(payload(block("mamba1", "none", d_state=3), hidden_size=20))
    m = model.model.layers[0].mixer
    torch.testing.assert_close(m.A_log.exp(), torch.tensor([1.0, 2.0, 3.0]).expand(40, 3))
    assert (m.D == 1).all()
    steps = F.softplus(m.dt_proj.bias)
    assert steps.min() >= 0.999e-3
    assert steps.max() <= 0.1001
    assert steps.log().std() > 0.8, "log-uniform over two decades has 1.33"
    assert 0.8 * 5**-0.5 < m.dt_proj.weight.abs().max() <= 5**-0.5
    scaled, plain = (rules_of(m.out_proj, Init(s, 0.02, 8))["weight"].std for s in ("scaled_residual", "normal"))
    assert scaled == plain / 4


def ours_from(theirs, **changes) -> Mixer:
    m = mixer(torch.float32, **changes)
    names = {"dt_layernorm": "dt_norm", "b_layernorm": "b_norm", "c_layernorm": "c_norm"}
    renamed = {".".join(names.get(part, part) for part in k.split(".")): v for k, v in theirs.state_dict().items()}
    m.load_state_dict(renamed)
    return m


def shaken(module):
    torch.manual_seed(2)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3)
    return module.eval()


def close(a, b):
    assert (a - b).abs().max() < 1e-4 * b.std(), (a - b).abs().max() / b.std()


@pytest.mark.parametrize("bias", [True, False])
def test_same_weights_same_outputs_as_transformers_mamba(bias, plain):
    config = MambaConfig(
        hidden_size=D, state_size=5, conv_kernel=3, time_step_rank=3, use_bias=bias, use_conv_bias=not bias
    )
    theirs = shaken(MambaMixer(config, 0))
    x = plain.tokens(D, torch.float32)
    close(ours_from(theirs, d_conv=3, bias=bias, conv_bias=not bias)(x, plain.context(), None)[0], theirs(x))


def test_same_weights_same_outputs_as_transformers_jamba(plain):
    config = JambaConfig(
        hidden_size=D,
        mamba_d_state=5,
        mamba_d_conv=4,
        mamba_dt_rank=3,
        mamba_expand=2,
        rms_norm_eps=1e-5,
        use_mamba_kernels=False,
    )
    theirs = shaken(JambaMambaMixer(config, 0))
    x = plain.tokens(D, torch.float32)
    close(ours_from(theirs, inner_norm=True)(x, plain.context(), None)[0], theirs(x))


def test_same_weights_same_logits_as_transformers_mamba(block, payload, build):
    config = MambaConfig(
        vocab_size=67, hidden_size=20, state_size=3, num_hidden_layers=3, time_step_rank=5, residual_in_fp32=False
    )
    theirs = shaken(MambaForCausalLM(config))
    kind = block("mamba1", "none", d_state=3, inner_norm=False, dt_rank=5)
    ours = build(payload(kind, pattern=["kind0"] * 3))
    ours.load_state_dict({renamed(k): v for k, v in theirs.state_dict().items()})
    ids = torch.randint(67, (2, 37), generator=torch.Generator().manual_seed(3))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    with torch.no_grad():
        close(ours(input_ids=ids).logits, theirs(input_ids=ids).logits)


def renamed(name: str) -> str:
    """The name here of a parameter of transformers' model."""
    name = name.replace("backbone.embeddings", "model.embed_tokens").replace("backbone.norm_f", "model.norm")
    return (
        name.replace("backbone.", "model.").replace(".norm.weight", ".mixer_norm.weight") if "layers" in name else name
    )

"""Multi-scale retention against the paper's recurrence written out, and against the authors' own class."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from eulerstack.modeling.context import Context
from eulerstack.modeling.mixer_retnet import Mixer

B, T, D = 3, 23, 15
SMALL = {"heads": 6, "kv_heads": 2, "key_dim": 4, "value_dim": 7, "chunkwise": True, "chunk_size": 5, "rope": True}
EPS = 1e-5


def mixer(dtype=torch.float64, *, eps=EPS, positional="rope", theta=100.0, **changes) -> Mixer:
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": theta}
    config = SimpleNamespace(hidden_size=D, rms_norm_eps=eps, positional=positional, max_position_embeddings=64)
    config.rope_parameters = rope if positional == "rope" else None
    made = Mixer(config, 0, **SMALL | changes)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    return made.to(dtype)


def turned(x, place, theta):
    """xPos without its magnitude: the pairs (x_i, x_{i + E/2}) as complex numbers, times exp(j place theta^(-2i/E))."""
    half = x.shape[-1] // 2
    angle = place * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag), -1)


def row_by_hand(m: Mixer, row, keep, starts, theta):
    """Sections 2.1 and 2.2 for one sequence, token by token, with one matrix a head."""
    p, heads, share = dict(m.named_parameters()), m.heads, m.heads // SMALL["kv_heads"]
    gamma = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=row.dtype))
    fresh = torch.zeros(heads, m.key_dim, m.value_dim, dtype=row.dtype)
    outputs, S, place = [], fresh, 0
    for t, token in enumerate(row):
        if starts[t]:
            S, place = fresh, 0
        if not keep[t]:
            outputs.append(torch.zeros_like(token))
            continue
        q, k, v, g = (p[f"{name}_proj.weight"] @ token for name in "qkvg")
        q, k = q.view(heads, -1), (k / math.sqrt(m.key_dim)).view(-1, m.key_dim).repeat_interleave(share, 0)
        if m.rope:
            q, k = turned(q, place, theta), turned(k, place, theta)
        v = v.view(-1, m.value_dim).repeat_interleave(share, 0)
        S = gamma[:, None, None] * S + k[..., None] * v[:, None]
        y = (q[..., None] * S).sum(1)
        y = y / (y.square().mean(-1, keepdim=True) + EPS).sqrt()
        outputs.append(p["out_proj.weight"] @ (F.silu(g) * y.flatten()))
        place += 1
    return torch.stack(outputs)


@pytest.mark.parametrize("changes", [{}, {"chunkwise": False}, {"rope": False, "chunk_size": 64}])
def test_outputs_and_all_gradients_are_those_of_the_paper(changes, rows):
    m, x = mixer(**changes), rows.tokens(D)
    rows.same(m, x, rows.by_hand(row_by_hand, m, x, 100.0))


@pytest.mark.parametrize("cuts", [[9, 1, 13], [1] * T], ids=["chunks", "steps"])
def test_pieces_give_the_whole_and_leave_old_states_alone(cuts, rows):
    rows.same_in_pieces(mixer(), rows.tokens(D), cuts)


def test_the_rotation_is_the_models_or_a_plain_one(plain):
    x = plain.tokens(D)
    for made, theta in ((mixer(theta=7.0), 7.0), (mixer(positional="none"), 10000.0)):
        torch.testing.assert_close(made(x, plain.context(), None)[0], plain.by_hand(row_by_hand, made, x, theta))


def test_state_is_returned_only_when_asked_for_and_in_the_promised_shape(plain):
    m, x = mixer(torch.bfloat16), plain.tokens(D, torch.bfloat16)
    assert m(x, plain.context(), None)[1] is None
    y, state = m(x, plain.context(use_cache=True), None)
    assert y.dtype == torch.bfloat16
    assert {k: (v.shape, v.dtype) for k, v in state.items()} == {"retention": ((B, 6, 4, 7), torch.float32)}


def test_the_decay_of_a_late_head_is_not_rounded_away():
    log_decay = mixer(heads=40, kv_heads=1)._log_decay(torch.zeros((), dtype=torch.float32))
    want = torch.log1p(-torch.pow(2.0, torch.arange(-5, -45, -1, dtype=torch.float64)))
    torch.testing.assert_close(log_decay.double(), want, rtol=1e-6, atol=0)
    assert (log_decay < 0).all()


def interleaved(weight, heads: int):
    """The rows of q and k as the authors' code has them: the two channels of a pair are neighbours."""
    halves = weight.view(heads, 2, -1, weight.shape[-1])
    return halves.transpose(1, 2).reshape_as(weight)


def authors(m: Mixer):
    """The authors' class with the weights of `m`, and its angles and decays for T tokens."""
    retention = pytest.importorskip(
        "torchscale.component.multiscale_retention",
        reason="torchscale, the authors' package, is not installed; the loops above are the proof without it",
    )
    args = SimpleNamespace(multiway=False, layernorm_eps=m.config.rms_norm_eps)
    theirs = retention.MultiScaleRetention(args, D + 1, m.heads * m.value_dim, m.heads).double()
    theirs.load_state_dict(
        {name: interleaved(weight, m.heads) if name[0] in "qk" else weight for name, weight in m.state_dict().items()}
    )
    angle = (100.0 ** (-torch.arange(m.key_dim // 2, dtype=torch.float64) * 2 / m.key_dim)).repeat_interleave(2)
    angles = torch.arange(T)[:, None] * angle
    return theirs, angles, 1 - 2.0 ** (-5 - torch.arange(m.heads, dtype=torch.float64))


@pytest.mark.parametrize("form", ["parallel", "recurrent"])
def test_same_weights_same_outputs_as_torchscale(form, plain):
    """A tiny eps: the authors' three scale factors, which the norm undoes, weigh on eps."""
    torch.manual_seed(0)
    config = SimpleNamespace(hidden_size=D + 1, rms_norm_eps=1e-13, positional="rope", max_position_embeddings=64)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 100.0}
    m = Mixer(config, 0, **SMALL | {"heads": 4, "kv_heads": 4}).double()
    theirs, angles, decay = authors(m)
    x = torch.randn(B, T, D + 1, dtype=torch.float64)
    got = m(x, plain.context(), None)[0]
    if form == "parallel":
        distance = torch.arange(T)[:, None] - torch.arange(T)
        mask = torch.where(distance >= 0, decay[:, None, None] ** distance.clamp(min=0), 0.0)
        mask = mask / mask.sum(-1, keepdim=True).sqrt()
        want = theirs(x, ((angles.sin(), angles.cos()), mask))
    else:
        state: dict = {}
        steps = [((a.sin(), a.cos()), decay) for a in angles]
        want = torch.cat([theirs(x[:, t : t + 1], at, incremental_state=state) for t, at in enumerate(steps)], 1)
    assert (got - want).abs().max() < 1e-6 * want.std()


@pytest.mark.parametrize("positional", ["rope", "none"])
def test_it_compiles_into_one_graph(positional, plain):
    m, places = mixer(positional=positional), torch.arange(T).expand(B, T)

    def run(x, places):
        return m(x, Context(places, key_positions=places), None)[0]

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    x = plain.tokens(D)
    torch.testing.assert_close(compiled(x, places), run(x, places))

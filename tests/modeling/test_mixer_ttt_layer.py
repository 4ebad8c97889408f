"""Test-time training against the paper's equations, one token at a time, with autograd's own inner gradient."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from eulerstack.modeling.context import Context
from eulerstack.modeling.initial import Init, draw
from eulerstack.modeling.mixer_ttt_layer import Mixer
from eulerstack.modeling.op_ttt_layers import BETAS, DECAY, FLOOR

D, H, P, HIDDEN, EPS = 10, 2, 3, 5, 1e-5
KINDS = [(model, optimizer) for model in ("linear", "mlp") for optimizer in ("sgd", "adamw")]
every_kind = pytest.mark.parametrize(("model", "optimizer"), KINDS)


def built(model="mlp", optimizer="sgd", *, passes=1, size=3, rate=0.3, dtype=torch.float64, heads=H, head_dim=P):
    """A mixer whose every parameter counts."""
    torch.manual_seed(5)
    mixer = Mixer(
        SimpleNamespace(hidden_size=D, rms_norm_eps=EPS),
        0,
        heads=heads,
        head_dim=head_dim,
        inner_model=model,
        hidden=HIDDEN if model == "mlp" else None,
        inner_optimizer=optimizer,
        inner_lr=rate,
        inner_steps_per_token=passes,
        mini_batch=size,
    )
    for name, parameter in mixer.named_parameters():
        torch.nn.init.normal_(parameter, std=0.5, mean=1.0 if name == "norm_weight" else 0.0)
    return mixer.to(dtype)


def inputs(b=2, t=8):
    return torch.randn(b, t, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def context(x, keep=None, starts=None, use_cache=True):
    positions = torch.arange(x.shape[1]).expand(x.shape[:2])
    return Context(positions=positions, keep=keep, starts=starts, use_cache=use_cache)


class Head:
    """Head h of a mixer as the paper writes it: f, its loss, its steps, token by token."""

    def __init__(self, mixer, h):
        self.h, self.rule, self.size = h, mixer.rule, mixer.mini_batch
        names = [f"{name}{i}" for i in mixer.layers for name in "Wb"]
        self.norm = mixer.norm_weight[h], mixer.norm_bias[h]
        self.weights = [getattr(mixer, name)[h] for name in names]
        self.moments = [[torch.zeros_like(w) for w in self.weights] for _ in range(2)]
        self.steps = self.filled = 0
        self.nothing()

    def nothing(self):
        self.sums = [[torch.zeros_like(w) for w in self.weights] for _ in range(self.rule.passes)]

    def f(self, x, weights):
        z = x @ weights[0] + weights[1]
        if len(weights) > 2:
            z = F.gelu(z) @ weights[2] + weights[3]
        return x + F.layer_norm(z, (P,), *self.norm, EPS)

    def step(self, weights, moments, gradients, n):
        if self.rule.optimizer == "sgd":
            return [w - self.rule.rate * g for w, g in zip(weights, gradients, strict=True)], moments
        (b1, b2), after, ms, vs = BETAS, [], [], []
        for w, m, v, g in zip(weights, *moments, gradients, strict=True):
            ms.append(b1 * m + (1 - b1) * g)
            vs.append(b2 * v + (1 - b2) * g**2)
            corrected = ms[-1] / (1 - b1**n) / (vs[-1] / (1 - b2**n) + FLOOR).sqrt()
            after.append(w * (1 - self.rule.rate * DECAY) - self.rule.rate * corrected)
        return after, [ms, vs]

    def token(self, k, v, q, gate):
        weights, moments = self.weights, self.moments
        for j in range(self.rule.passes):
            loss = (self.f(k, weights) - v).square().sum()
            gradients = torch.autograd.grad(loss, weights, create_graph=True)
            self.sums[j] = [total + gate * g for total, g in zip(self.sums[j], gradients, strict=True)]
            weights, moments = self.step(weights, moments, self.sums[j], self.steps + j + 1)
        self.filled += 1
        if self.filled == self.size:
            self.weights, self.moments, self.filled = weights, moments, 0
            self.steps += self.rule.passes
            self.nothing()
        return self.f(q, weights)


def by_hand(mixer, x):
    rows = []
    for row in x:
        heads, outputs = [Head(mixer, h) for h in range(H)], []
        for token in row:
            q, k, v = (proj(token).view(H, P) for proj in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
            gate = torch.sigmoid(mixer.rate_proj(token))
            outputs.append(torch.cat([head.token(k[h], v[h], q[h], gate[h]) for h, head in enumerate(heads)]))
        rows.append(mixer.o_proj(torch.stack(outputs)))
    return torch.stack(rows)


@every_kind
@pytest.mark.parametrize(("passes", "size", "length"), [(1, 3, 8), (3, 3, 7), (1, 1, 11), (2, 40, 5)])
def test_outputs_and_all_gradients_are_those_of_the_equations(model, optimizer, passes, size, length):
    mixer, x = built(model, optimizer, passes=passes, size=size), inputs(t=length).requires_grad_()
    leaves = dict(mixer.named_parameters()) | {"x": x}
    weight = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    got, want = mixer(x, context(x, use_cache=False), None)[0], by_hand(mixer, x)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    grads = [torch.autograd.grad((y * weight).sum(), list(leaves.values())) for y in (got, want)]
    for name, a, b in zip(leaves, *grads, strict=True):
        assert b.abs().max() > 0, name
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")


@every_kind
@pytest.mark.parametrize("cuts", [[1] * 13, [5, 1, 7], [3, 6, 4]])
def test_calls_continue_with_padding_and_documents(model, optimizer, cuts):
    """Rows with other gaps and borders; a row of real tokens between two borders is as if it were alone."""
    mixer, x = built(model, optimizer, passes=2), inputs(3, 13)
    keep, starts = torch.ones(3, 13, dtype=torch.bool), torch.zeros(3, 13, dtype=torch.bool)
    keep[0, :4] = keep[1, 10:] = keep[2, 5:7] = False
    starts[0, 6] = starts[1, 1] = starts[1, 5] = starts[2, 7] = True
    alone = torch.zeros_like(x)
    for b in range(3):
        edges = [0, *starts[b].nonzero().flatten().tolist(), 13]
        for a, z in pairwise(edges):
            real = [t for t in range(a, z) if keep[b, t]]
            alone[b, real] = mixer(x[b : b + 1, real], context(x[:1, real]), None)[0][0]
    state, got, at = None, [], 0
    for n in cuts:
        now = slice(at, at + n)
        y, state = mixer(x[:, now], context(x[:, now], keep[:, now], starts[:, now]), state)
        got.append(y)
        at += n
    torch.testing.assert_close(torch.cat(got, 1) * keep[..., None], alone * keep[..., None], rtol=1e-9, atol=1e-9)


@every_kind
def test_gradients_flow_through_the_state(model, optimizer):
    mixer, x = built(model, optimizer), inputs(t=8).requires_grad_()
    whole, _ = mixer(x, context(x), None)
    first, state = mixer(x[:, :5], context(x[:, :5]), None)
    second, _ = mixer(x[:, 5:], context(x[:, 5:]), state)
    leaves = [x, *mixer.parameters()]
    grads = [torch.autograd.grad(y.sin().sum(), leaves) for y in (whole, torch.cat((first, second), 1))]
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-9)


@every_kind
def test_the_inner_model_learns_what_it_is_shown(model, optimizer):
    """The same token again and again: f(k) comes nearer to v with each mini-batch."""
    mixer = built(model, optimizer, rate=0.02, head_dim=8)
    with torch.no_grad():
        mixer.q_proj.weight.copy_(mixer.k_proj.weight)
        mixer.norm_weight.fill_(1.0)
        x = inputs(1, 1).expand(1, 60, D)
        mixer.o_proj = torch.nn.Identity()
        y, _ = mixer(x, context(x), None)
        errors = (y - mixer.v_proj(x)).square().mean((0, 2))
    assert errors[2] > errors[10] > errors[-1]
    assert errors[-1] < 0.7 * errors[0]


@every_kind
@pytest.mark.parametrize("length", [1, 7])
def test_the_state_holds_its_numbers_and_no_more(model, optimizer, length):
    mixer, x = built(model, optimizer, passes=2), inputs(2, length).to(torch.bfloat16)
    _, state = mixer.to(torch.bfloat16)(x, context(x), None)
    names = {f"{name}{i}" for i in mixer.layers for name in ("WG" if optimizer == "sgd" else "WmvnG")}
    assert state.keys() == names | {"filled"}
    assert state["G1"].shape == (2, H, 2, P + 1, P if model == "linear" else HIDDEN)
    assert state["filled"].tolist() == [1, 1]
    for name, tensor in state.items():
        assert tensor.dtype == (torch.int64 if name == "filled" else torch.float32)
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, name


@every_kind
@pytest.mark.parametrize("passes", [1, 3])
def test_half_precision_stays_finite_on_long_sequences_and_at_high_rates(model, optimizer, passes):
    mixer = built(model, optimizer, passes=passes, size=16, rate=1.0, dtype=torch.bfloat16)
    x = (10 * inputs(1, 400)).to(torch.bfloat16).requires_grad_()
    y, _ = mixer(x, context(x, use_cache=False), None)
    y.float().square().mean().backward()
    assert y.dtype == torch.bfloat16
    assert all(torch.isfinite(t).all() for t in (y, x.grad, *(p.grad for p in mixer.parameters())))


def test_autocast_leaves_the_inner_model_in_its_precision():
    mixer, x = built(dtype=torch.float32), inputs().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, state = mixer(x, context(x), None)
    assert {t.dtype for name, t in state.items() if name != "filled"} == {torch.float32}


def test_weights_start_small_and_the_norm_as_it_is():
    mixer, init = built(heads=50, head_dim=20), Init("normal", 0.02, 3)
    rules = mixer.initial(init)
    assert rules.keys() == dict(mixer.named_parameters(recurse=False)).keys()
    for name, parameter in mixer.named_parameters(recurse=False):
        draw(parameter, rules[name])
    assert mixer.W2.std().item() == pytest.approx(0.02, rel=0.05)
    assert mixer.b1.abs().max() == mixer.norm_bias.abs().max() == 0
    assert (mixer.norm_weight == 1).all()

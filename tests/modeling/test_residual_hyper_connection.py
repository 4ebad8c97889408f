"""Hyper-connections against the class of transformers, the papers' equations token by token, and the plain residual.

B batch, T tokens, D d_model, n streams.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from eulerstack.modeling.initial import Init, draw, rules_of
from eulerstack.modeling.residual_hyper_connection import Residual

B, T, D, EPS = 2, 5, 7, 1e-5
MIXINGS = ("birkhoff", "unconstrained", "learned_lowrank")
HYPER = {"type": "hyper_connection", "expand": 3, "sinkhorn_iters": 3}


def connection(mixing: str, n: int, iterations: int = 3, layer: int = 1, dtype=torch.float64) -> Residual:
    """With every parameter away from its start."""
    config = SimpleNamespace(hidden_size=D, rms_norm_eps=EPS)
    made = Residual(config, layer, expand=n, mixing=mixing, sinkhorn_iters=iterations)
    generator = torch.Generator().manual_seed(n)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.6, generator=generator)
    return made.to(dtype)


def fresh(mixing: str, n: int, layer: int = 1) -> Residual:
    made = connection(mixing, n, layer=layer, dtype=torch.float32)
    torch.manual_seed(0)
    for name, rule in rules_of(made, Init("normal", 0.02, 4)).items():
        draw(getattr(made, name).data, rule)
    return made.double()


def streams(n: int, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(B, T, n, D, generator=torch.Generator().manual_seed(7), dtype=dtype)


def branch(h: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * h) + h.roll(1, -1)


def through(made: Residual, x: torch.Tensor) -> torch.Tensor:
    h, link = made.read(x)
    return made.write(x, branch(h), link)


class Through(torch.nn.Module):
    def __init__(self, connection: Residual):
        super().__init__()
        self.connection = connection

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return through(self.connection, x)


def rms(values: list) -> list:
    size = math.sqrt(sum(v * v for v in values) / len(values) + EPS)
    return [v / size for v in values]


def dot(row, values):
    return sum(w * v for w, v in zip(row, values, strict=True))


def doubly_stochastic(logits: list[list[float]], iterations: int) -> list[list[float]]:
    """Sinkhorn & Knopp: rows, then columns."""
    n = len(logits)
    m = [[math.exp(v) for v in row] for row in logits]
    for _ in range(iterations):
        m = [[v / sum(row) for v in row] for row in m]
        m = [[m[j][k] / sum(m[i][k] for i in range(n)) for k in range(n)] for j in range(n)]
    return m if iterations else [[m[j][k] / sum(m[i][k] for i in range(n)) for k in range(n)] for j in range(n)]


def weights_of_a_token(made: Residual, x: list[list[float]]):
    """pre, post and mix of one token from its streams, in plain numbers."""
    n, scale = made.n, made.scale.tolist()
    weight, bias = made.weight.tolist(), made.bias.tolist()
    if made.mixing == "birkhoff":
        u = rms([v for stream in x for v in stream])
        z = [dot(row, u) for row in weight]
        a = [scale[0]] * n + [scale[1]] * n + [scale[2]] * n * n
        z = [s * v + b for s, v, b in zip(a, z, bias, strict=True)]
        pre = [1 / (1 + math.exp(-v)) for v in z[:n]]
        post = [2 / (1 + math.exp(-v)) for v in z[n : 2 * n]]
        rows = [z[2 * n + n * j : 2 * n + n * (j + 1)] for j in range(n)]
        return pre, post, doubly_stochastic(rows, made.sinkhorn_iters)
    dynamic = [[math.tanh(dot(row, rms(stream))) for row in weight] for stream in x]
    a = [scale[0], scale[1]] + [scale[2]] * (len(weight) - 2)
    full = [[s * v + b for s, v, b in zip(a, row, own, strict=True)] for row, own in zip(dynamic, bias, strict=True)]
    mix = [row[2:] for row in full]
    if made.mixing == "learned_lowrank":
        right = made.right.tolist()
        columns = list(zip(*right, strict=True))
        mix = [[float(j == k) + dot(mix[j], columns[k]) for k in range(n)] for j in range(n)]
    return [row[0] for row in full], [row[1] for row in full], mix


@pytest.mark.parametrize("iterations", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("mixing", MIXINGS)
def test_equations_token_by_token(mixing, n, iterations):
    made, x = connection(mixing, n, iterations), streams(n)
    got, want = through(made, x), torch.empty_like(x)
    for b in range(B):
        for t in range(T):
            pre, post, mix = weights_of_a_token(made, x[b, t].tolist())
            y = branch(sum(w * stream for w, stream in zip(pre, x[b, t], strict=True)))
            for k in range(n):
                want[b, t, k] = post[k] * y + sum(mix[j][k] * x[b, t, j] for j in range(n))
    assert (got - want).abs().max() < 1e-12


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("n", [1, 3])
def test_gradients(mixing, n):
    model = Through(connection(mixing, n))
    names, tensors = zip(*model.named_parameters(), strict=True)

    def run(x, *values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (streams(n)[:1, :2].requires_grad_(), *tensors))


@pytest.mark.parametrize("iterations", [1, 3, 20])
@pytest.mark.parametrize("n", [2, 4])
def test_birkhoff_is_transformers_own(n, iterations):
    """transformers computes in float32 and adds `hc_eps` in places, here 0."""
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection

    config = SimpleNamespace(hc_mult=n, hc_sinkhorn_iters=iterations, hc_eps=0.0, rms_norm_eps=EPS, hidden_size=D)
    theirs, mine = DeepseekV4HyperConnection(config), connection("birkhoff", n, iterations, dtype=torch.float32)
    renamed = {"fn": mine.weight, "base": mine.bias, "scale": mine.scale}
    theirs.load_state_dict({name: value.data for name, value in renamed.items()})
    x = streams(n, torch.float32)
    post, comb, collapsed = theirs(x)
    y = branch(collapsed)
    want = post.unsqueeze(-1) * y.unsqueeze(-2) + comb.transpose(-1, -2) @ x
    got = through(mine, x)
    assert (got - want).abs().max() < 2e-6
    (got * x.cos()).sum().backward()
    (want * x.cos()).sum().backward()
    for name, value in renamed.items():
        other = getattr(theirs, name).grad
        assert (value.grad - other).abs().max() < 2e-5 * other.abs().max() + 1e-6, name


@pytest.mark.parametrize("iterations", [0, 1, 7])
def test_birkhoff_keeps_the_mean_of_the_streams(iterations):
    """What every column sums to is what a stream gets of equal streams."""
    made, x = connection("birkhoff", 3, iterations), streams(1).repeat(1, 1, 3, 1)
    _, (_, mix) = made.read(x)
    assert (made.write(x, torch.zeros(B, T, D), (torch.zeros(B, T, 3), mix)) - x).abs().max() < 1e-12


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("mixing", MIXINGS)
def test_a_new_connection_without_its_dynamic_part_is_the_plain_residual(mixing, n):
    made = fresh(mixing, n)
    torch.nn.init.zeros_(made.scale)
    x = streams(1).repeat(1, 1, n, 1)
    h, link = made.read(x)
    seen = 0.95 if mixing == "birkhoff" and n == 1 else 1.0
    bound = 1e-6  # the static part is drawn in float32
    assert (h - seen * x[:, :, 0]).abs().max() < bound
    assert (made.write(x, branch(h), link) - x - branch(h).unsqueeze(2)).abs().max() < bound


@pytest.mark.parametrize("mixing", MIXINGS)
def test_a_new_connection_reads_one_stream_most(mixing):
    for layer in range(5):
        made, x = fresh(mixing, 3, layer), torch.zeros(1, 1, 3, D).double()
        shares = []
        for j in range(3):
            one = x.clone()
            one[0, 0, j] = 1.0
            shares.append(made.read(one)[0].mean().item())
        assert max(range(3), key=shares.__getitem__) == layer % 3


@pytest.fixture
def hyper_model(build, payload, block):
    """Two layers over three streams, new, in training."""

    def made(mixing: str):
        kind = block(residual=HYPER | {"mixing": mixing})
        return build(payload(kind, kind | {"norm": kind["norm"] | {"position": "post_branch"}}, streams=3)).double()

    return made


def learn(model):
    ids = torch.randint(2, 67, (2, 9), generator=torch.Generator().manual_seed(1))
    model.train()(input_ids=ids, labels=ids).loss.backward()
    return ids


@pytest.mark.parametrize("mixing", MIXINGS)
def test_every_parameter_learns(mixing, hyper_model):
    model = hyper_model(mixing)
    learn(model)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("mixing", MIXINGS)
def test_the_static_part_alone_lets_streams_come_apart(mixing, hyper_model):
    model, seen = hyper_model(mixing), []
    for name, parameter in model.named_parameters():
        if name.endswith("hyper.scale"):
            torch.nn.init.zeros_(parameter)
    model.model.layers[-1].register_forward_hook(lambda module, args, out: seen.append(out[0]))
    ids = learn(model)
    for parameter in model.parameters():
        parameter.data -= 0.1 * parameter.grad
    model(input_ids=ids)
    before, after = ((x - x.mean(2, keepdim=True)).std() / x.std() for x in seen)
    assert before < 1e-6
    assert after > 1e-3


@pytest.mark.parametrize("mixing", MIXINGS)
def test_half_precision_mixes_in_float32(mixing):
    made, x = connection(mixing, 3, dtype=torch.bfloat16), streams(3, torch.bfloat16)
    wide = connection(mixing, 3, dtype=torch.float32)
    wide.load_state_dict({name: p.float() for name, p in made.state_dict().items()})
    h, (post, mix) = made.read(x)
    h32, link = wide.read(x.float())
    assert h.dtype == torch.bfloat16
    assert post.dtype == mix.dtype == torch.float32
    assert torch.equal(h, h32.bfloat16())
    assert torch.equal(mix, link[1])
    assert torch.equal(made.write(x, h, (post, mix)), wide.write(x.float(), h.float(), link).bfloat16())


def test_an_unknown_mixing_is_refused():
    with pytest.raises(ValueError, match="birkhof"):
        connection("birkhof", 2)

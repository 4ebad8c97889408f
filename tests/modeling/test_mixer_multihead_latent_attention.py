"""Latent attention with a rotary part of its own against a loop, and the two orders of its products."""

import pytest
import torch

from eulerstack.modeling.op_mask import alibi_slopes

T = 13
NO_Q_LATENT = {"q_latent_dim": None}
GROUPED = {"n_kv_heads": 2}
WITHOUT_SINKS = {"attention_sinks": None}
CAPPED = {"logit_softcap": 0.7, "qkv_bias": False}
VARIANTS = [{}, NO_Q_LATENT, GROUPED | CAPPED, WITHOUT_SINKS | {"window": 4}, GROUPED | {"window": 5}]


@pytest.fixture(params=["rope", "none", "alibi"])
def positional(request):
    return request.param


@pytest.fixture
def made(build, payload, block, positional):
    """`made(**options)`: a float64 model of one layer, a rotary part only if there is rope, sinks of some size."""

    def model(**options):
        still = {} if positional == "rope" else {"qk_rope_dim": 0, "head_dim": 6}
        rope = {} if positional == "rope" else {"rope_parameters": None}
        layer = block("multihead_latent_attention", **still | options)
        made = build(payload(layer, positional=positional, **rope), torch.float64)
        if made.model.layers[0].mixer.sinks is not None:
            torch.nn.init.normal_(made.model.layers[0].mixer.sinks, generator=torch.Generator().manual_seed(6))
        return made

    return model


@pytest.fixture
def x():
    return torch.randn(2, T, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turned(x, place):
    """A rotary part [R] at a place, by complex numbers."""
    half = len(x) // 2
    angle = place / 10000.0 ** (torch.arange(half, dtype=x.dtype) / half)
    z = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag))


def loop(mixer, x, positional):
    """One query, head and key at a time, from the equations of DeepSeek-V2."""
    latent, n, r, _ = mixer.sizes
    h, g, window, cap = mixer.n_heads, mixer.n_kv_heads, mixer.window.size, mixer.logit_softcap
    slopes = alibi_slopes(h) if positional == "alibi" else [0.0] * h
    q = mixer.q_proj(x) if mixer.q_latent_dim is None else mixer.q_up(rms(mixer.q_down(x), mixer.q_down_norm.weight))
    q, down = q.unflatten(-1, (h, n + r)), mixer.kv_down(x)
    c = rms(down[..., :latent], mixer.kv_norm.weight)
    k, v = (up(c).unflatten(-1, (g, -1)) for up in (mixer.k_up, mixer.v_up))
    out = torch.zeros(*x.shape[:2], h, v.shape[-1], dtype=x.dtype)
    for b, i, head in torch.cartesian_prod(torch.arange(len(x)), torch.arange(T), torch.arange(h)).tolist():
        seen = range(0 if window is None else max(0, i - window + 1), i + 1)
        scores = []
        for j in seen:
            score = q[b, i, head, :n] @ k[b, j, head * g // h]
            score = score + turned(q[b, i, head, n:], i) @ turned(down[b, j, latent:], j)
            score = mixer.scaling * score
            score = score if cap is None else cap * torch.tanh(score / cap)
            scores.append(score - slopes[head] * (i - j))
        sinks = [] if mixer.sinks is None else list(mixer.sinks[head])
        weights = torch.stack(scores + sinks).softmax(0)[: len(scores)]
        out[b, i, head] = weights @ v[b, seen.start : i + 1, head * g // h]
    return mixer.o_proj(out.flatten(2))


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("options", VARIANTS)
def test_against_a_loop(made, positional, x, kernel, options):
    model, seen = made(**options), []
    model.config._attn_implementation = kernel
    mixer = model.model.layers[0].mixer
    mixer.register_forward_hook(lambda module, args, out: seen.append((args[0], out[0])))
    with torch.no_grad():
        model(inputs_embeds=x, use_cache=False)
        read, y = seen[0]
        assert (y - loop(mixer, read, positional)).abs().max() < 1e-12


def documents():
    return torch.cat((torch.arange(5), torch.arange(T - 5)))[None].expand(2, -1)


NAMED = [{}, {"attention_mask": torch.tensor([[1] * T, [0] * 4 + [1] * (T - 4)])}, {"position_ids": documents()}]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("named", NAMED, ids=["alone", "padded", "packed"])
def test_both_orders_are_one_attention_with_its_gradients(made, x, options, named):
    """Whatever masks there are: the same output, and the same gradient of every weight."""
    model, out = made(**options), []
    mixer = model.model.layers[0].mixer
    for absorbed in (False, True):
        mixer.absorbing_is_cheaper = lambda t, k, absorbed=absorbed: absorbed
        model.zero_grad()
        logits = model(inputs_embeds=x, use_cache=False, **named).logits
        logits.sin().sum().backward()
        out.append([logits, *(p.grad.clone() for p in mixer.parameters())])
    for expanded, absorbed in zip(*out, strict=True):
        assert (expanded - absorbed).abs().max() < 1e-11 * expanded.abs().max()


@pytest.mark.parametrize("options", VARIANTS)
def test_a_step_on_a_long_cache_absorbs_and_a_whole_text_expands(made, options):
    model, taken = made(**options), []
    mixer = model.model.layers[0].mixer
    for name in ("attend_absorbed", "attend_expanded"):
        order = getattr(mixer, name)
        setattr(mixer, name, lambda *args, name=name, order=order: (taken.append(name), order(*args))[1])
    ids = torch.randint(2, 67, (2, T), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        past = model(ids[:, :9], use_cache=True).past_key_values
        steps = [model(ids[:, t : t + 1], past_key_values=past, use_cache=True).logits for t in range(9, T)]
    assert taken == ["attend_expanded"] * 2 + ["attend_absorbed"] * (T - 9)
    assert (torch.cat(steps, 1) - full[:, 9:]).abs().max() < 1e-12


class Adapted(torch.nn.Linear):
    """A layer whose weight does not say all it does, as an adapter makes it."""

    def forward(self, x):
        return 2 * super().forward(x) + 1


@pytest.mark.parametrize("name", ["k_up", "v_up"])
@pytest.mark.parametrize("way", ["class", "hook", "forward"])
def test_what_stands_around_an_expansion_is_not_passed_by(made, name, way):
    model = made()
    up = getattr(model.model.layers[0].mixer, name)
    plain = up.forward
    if way == "class":
        up.__class__ = Adapted
    elif way == "hook":
        up.register_forward_hook(lambda module, args, out: 2 * out + 1)
    else:
        up.forward = lambda x: 2 * plain(x) + 1
    ids = torch.randint(2, 67, (2, T), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        past = model(ids[:, :9], use_cache=True).past_key_values
        step = model(ids[:, 9:10], past_key_values=past, use_cache=True).logits
    assert (step - full[:, 9:10]).abs().max() < 1e-12


@pytest.mark.parametrize(("window", "held"), [(None, 12), (5, 4)])
def test_the_cache_holds_the_latent_and_the_rotary_key_alone(made, positional, window, held):
    model = made(window=window)
    ids = torch.randint(2, 67, (3, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        past = model(ids, use_cache=True).past_key_values
    width = 11 + (4 if positional == "rope" else 0)
    assert {name: tuple(t.shape) for name, t in past.states[0].items()} == {"latent": (3, held, width)}


def test_names_of_the_parameters(made):
    names = {name for name, _ in made().model.layers[0].mixer.named_parameters()}
    assert names == {
        *("q_down.weight", "q_down.bias", "q_down_norm.weight", "q_up.weight"),
        *("kv_down.weight", "kv_down.bias", "kv_norm.weight", "k_up.weight", "v_up.weight"),
        *("o_proj.weight", "sinks"),
    }

"""Latent attention against a loop, and what its cache holds."""

import pytest
import torch

T = 13


@pytest.fixture(params=["rope", "none"])
def positional(request):
    return request.param


@pytest.fixture
def x():
    return torch.randn(2, T, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def made(build, payload, block, positional, **options):
    layer = block("latent_attention", **options)
    rope = {} if positional == "rope" else {"rope_parameters": None}
    return build(payload(layer, positional=positional, **rope), torch.float64)


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turned(x, place):
    """One head vector [D] at a place, by complex numbers."""
    half = len(x) // 2
    angle = place / 10000.0 ** (torch.arange(half, dtype=x.dtype) / half)
    z = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag))


def loop(mixer, x, positional, window, qk_norm):
    h, g, d = mixer.n_heads, mixer.n_kv_heads, mixer.head_dim
    latent = rms(mixer.kv_down(x), mixer.kv_norm.weight)
    out = []
    for b in range(len(x)):
        for i in range(T):
            heads = []
            for head in range(h):
                q = mixer.q_proj(x[b, i]).view(h, d)[head]
                keys = [mixer.k_up(latent[b, j]).view(g, d)[head * g // h] for j in range(i + 1)]
                if qk_norm == "rmsnorm":
                    q, keys = rms(q, mixer.q_norm.weight), [rms(k, mixer.k_norm.weight) for k in keys]
                if positional == "rope":
                    q, keys = turned(q, i), [turned(k, j) for j, k in enumerate(keys)]
                first = 0 if window is None else max(0, i - window + 1)
                weights = (mixer.scaling * torch.stack(keys[first:]) @ q).softmax(0)
                values = mixer.v_up(latent[b, first : i + 1]).view(-1, g, d)[:, head * g // h]
                heads.append(weights @ values)
            out.append(mixer.o_proj(torch.cat(heads)))
    return torch.stack(out).view_as(x)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("qk_norm", ["none", "rmsnorm"])
def test_against_a_loop(build, payload, block, positional, x, kernel, window, qk_norm):
    model = made(build, payload, block, positional, window=window, qk_norm=qk_norm)
    model.config._attn_implementation = kernel
    seen, mixer = [], model.model.layers[0].mixer
    mixer.register_forward_hook(lambda module, args, out: seen.append((args[0], out[0])))
    with torch.no_grad():
        model(inputs_embeds=x, use_cache=False)
        (read, y) = seen[0]
        assert (y - loop(mixer, read, positional, window, qk_norm)).abs().max() < 1e-12


@pytest.mark.parametrize(("window", "held"), [(None, 12), (5, 4)])
def test_the_cache_holds_the_latent_alone(build, payload, block, positional, window, held):
    model = made(build, payload, block, positional, window=window)
    ids = torch.randint(2, 67, (3, T), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        past = model(ids[:, :7], use_cache=True).past_key_values
        out = [model(ids[:, t : t + 1], cache=past, use_cache=True).logits for t in range(7, 12)]
    assert {name: tuple(t.shape) for name, t in past.states[0].items()} == {"latent": (3, held, 9)}
    assert (torch.cat(out, 1) - full[:, 7:12]).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("positional", "qk_norm", "absorbs"),
    [("none", "none", True), ("alibi", "none", True), ("rope", "none", False), ("none", "rmsnorm", False)],
)
def test_a_step_absorbs_where_keys_are_neither_turned_nor_normed(build, payload, block, positional, qk_norm, absorbs):
    model, taken = made(build, payload, block, positional, qk_norm=qk_norm), []
    mixer = model.model.layers[0].mixer
    absorbed = mixer.attend_absorbed
    mixer.attend_absorbed = lambda *args: (taken.append(1), absorbed(*args))[1]
    ids = torch.randint(2, 67, (3, T), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        past = model(ids[:, :9], use_cache=True).past_key_values
        last = model(ids[:, 9:], past_key_values=past, use_cache=True)
        step = model(ids[:, :1], past_key_values=last.past_key_values, use_cache=True).logits
    assert bool(taken) is absorbs
    assert (last.logits - full[:, 9:]).abs().max() < 1e-12
    again = model(torch.cat((ids, ids[:, :1]), 1), use_cache=False).logits[:, -1:]
    assert (step - again).abs().max() < 1e-12


def test_both_orders_have_the_same_gradients(build, payload, block, x):
    model, out = made(build, payload, block, "none", qk_norm="none", window=6), []
    mixer = model.model.layers[0].mixer
    for absorbed in (False, True):
        mixer.absorbing_is_cheaper = lambda t, k, absorbed=absorbed: absorbed
        model.zero_grad()
        logits = model(inputs_embeds=x, use_cache=False).logits
        logits.sin().sum().backward()
        out.append([logits, *(p.grad.clone() for p in mixer.parameters())])
    for expanded, absorbed in zip(*out, strict=True):
        assert (expanded - absorbed).abs().max() < 1e-11 * expanded.abs().max()


def test_names_of_the_parameters(build, payload, block):
    names = {n for n, _ in made(build, payload, block, "rope", qkv_bias=True).model.layers[0].mixer.named_parameters()}
    assert names == {
        "q_proj.weight",
        "q_proj.bias",
        "kv_down.weight",
        "kv_down.bias",
        "kv_norm.weight",
        "k_up.weight",
        "v_up.weight",
        "o_proj.weight",
        "q_norm.weight",
        "k_norm.weight",
    }

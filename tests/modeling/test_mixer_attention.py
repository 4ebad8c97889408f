"""Attention against a loop over queries and keys, on every kernel."""

import pytest
import torch
from transformers import AttentionInterface

from eulerstack.modeling.op_mask import alibi_slopes

T = 19


def sees(distance: int, window, mode: str, dilation: int) -> bool:
    """The window table of the language, one pair at a time."""
    if distance < 0:
        return False
    if window is None:
        return True
    near = distance < window
    if mode == "dilated":
        return near and distance % dilation == 0
    if mode == "nsa":
        return near or distance % (window * dilation) == 0
    return near


def loop(mixer, x, *, window=None, mode="standard", dilation=1, slopes=None, cap=None, theta=None):
    """The mixer's output for `x` [B, T, M], one query and one key at a time; rope by complex numbers."""
    h, g, d = mixer.n_heads, mixer.n_kv_heads, mixer.head_dim
    q, k, v = (p(x).unflatten(-1, (-1, d)) for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    if theta is not None:
        angle = torch.arange(T, dtype=x.dtype)[:, None] / theta ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
        turn = torch.polar(torch.ones_like(angle), angle)[None, :, None]
        q, k = (torch.complex(t[..., : d // 2], t[..., d // 2 :]) * turn for t in (q, k))
        q, k = (torch.cat((t.real, t.imag), -1) for t in (q, k))
    y = torch.zeros(*x.shape[:2], h, d, dtype=x.dtype)
    for b in range(len(x)):
        for i in range(T):
            for head in range(h):
                keys = [j for j in range(T) if sees(i - j, window, mode, dilation)]
                scores = torch.stack([mixer.scaling * q[b, i, head] @ k[b, j, head * g // h] for j in keys])
                if cap is not None:
                    scores = cap * torch.tanh(scores / cap)
                if slopes is not None:
                    scores = scores - slopes[head] * torch.tensor([float(i - j) for j in keys], dtype=x.dtype)
                values = torch.stack([v[b, j, head * g // h] for j in keys])
                y[b, i, head] = scores.softmax(0) @ values
    return mixer.o_proj(y.flatten(2))


def run_mixer(model, x):
    """The first layer's mixer on `x`, in the context the decoder makes."""
    seen = []
    layer = model.model.layers[0]
    layer.mixer.register_forward_hook(lambda module, args, out: seen.append((args[0], out[0])))
    with torch.no_grad():
        model(inputs_embeds=x, use_cache=False)
    return seen[0]


@pytest.fixture
def x():
    return torch.randn(2, T, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.fixture(params=["eager", "sdpa"])
def kernel(request):
    return request.param


def made(build, payload, block, kernel, *, changes=None, **options):
    model = build(payload(block(**options), **(changes or {})), torch.float64)
    model.config._attn_implementation = kernel
    return model


WINDOWS = [
    (None, "standard", 1),
    (1, "standard", 1),
    (5, "standard", 1),
    (5, "sliding", 1),
    (T, "standard", 1),
    (7, "dilated", 3),
    (8, "dilated", 2),
    (3, "nsa", 2),
    (2, "nsa", 4),
]


@pytest.mark.parametrize(("window", "mode", "dilation"), WINDOWS)
def test_window_modes_against_a_loop(build, payload, block, kernel, x, window, mode, dilation):
    options = {"window": window, "window_mode": mode, "window_dilation": dilation}
    model = made(build, payload, block, kernel, **options)
    read, y = run_mixer(model, x)
    want = loop(model.model.layers[0].mixer, read, window=window, mode=mode, dilation=dilation, theta=10000.0)
    assert (y - want).abs().max() < 1e-12


@pytest.mark.parametrize(("window", "mode", "dilation"), WINDOWS)
def test_windows_continue_from_their_trimmed_state(build, payload, block, kernel, window, mode, dilation):
    options = {"window": window, "window_mode": mode, "window_dilation": dilation}
    model = made(build, payload, block, kernel, **options)
    ids = torch.randint(2, 67, (2, T), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        past, out, at = None, [], 0
        for n in (6, 1, 1, 8, 3):
            o = model(ids[:, at : at + n], cache=past, use_cache=True)
            past, at = o.past_key_values, at + n
            held = past.states[0]["keys"].shape[1]
            assert held == (at if window is None or mode == "nsa" else min(at, window - 1))
            out.append(o.logits)
    assert (torch.cat(out, 1) - full).abs().max() < 1e-12


@pytest.mark.parametrize(("window", "mode", "dilation"), WINDOWS)
def test_windows_count_real_tokens_alone(build, payload, block, kernel, window, mode, dilation):
    """Rows padded on either side, then continued, are as if alone, whatever the window has let go."""
    options = {"window": window, "window_mode": mode, "window_dilation": dilation}
    model = made(build, payload, block, kernel, **options)
    ids = torch.randint(2, 67, (3, T), generator=torch.Generator().manual_seed(1))
    spans, width = ((3, 13), (0, 5), (4, 14)), 14
    batch, mask = torch.full((3, width), 7), torch.zeros(3, width, dtype=torch.long)
    for row, (a, b) in enumerate(spans):
        batch[row, a:b], mask[row, a:b] = ids[row, : b - a], 1
    with torch.no_grad():
        alone = model(ids, use_cache=False).logits
        past = model(batch, attention_mask=mask, use_cache=True).past_key_values
        for at in (0, 1, 2, 5):
            n = 3 if at == 2 else 1
            new = torch.stack([ids[row, b - a + at : b - a + at + n] for row, (a, b) in enumerate(spans)])
            mask = torch.cat((mask, torch.ones_like(new)), 1)
            got = model(new, attention_mask=mask, cache=past, use_cache=True).logits
            want = torch.stack([alone[row, b - a + at : b - a + at + n] for row, (a, b) in enumerate(spans)])
            assert (got - want).abs().max() < 1e-12


@pytest.mark.parametrize("heads", [4, 3, 6])
@pytest.mark.parametrize("window", [None, 5])
def test_alibi_against_a_loop(build, payload, block, kernel, x, heads, window):
    changes = {"positional": "alibi", "rope_parameters": None}
    model = made(build, payload, block, kernel, changes=changes, n_heads=heads, n_kv_heads=1, window=window)
    read, y = run_mixer(model, x)
    want = loop(model.model.layers[0].mixer, read, slopes=alibi_slopes(heads), window=window)
    assert (y - want).abs().max() < 1e-12


def test_alibi_slopes_of_the_paper():
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]
    assert alibi_slopes(6) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]


@pytest.mark.parametrize("cap", [0.3, 5.0])
def test_logit_softcap_against_a_loop(build, payload, block, kernel, x, cap):
    model = made(build, payload, block, kernel, logit_softcap=cap, window=6)
    read, y = run_mixer(model, x)
    want = loop(model.model.layers[0].mixer, read, cap=cap, window=6, theta=10000.0)
    assert (y - want).abs().max() < 1e-12


def test_no_positions_cannot_tell_order(build, payload, block, kernel, x):
    model = made(build, payload, block, kernel, changes={"positional": "none", "rope_parameters": None})
    swapped = x[:, [*range(5, 0, -1), 0, *range(6, T)]]
    with torch.no_grad():
        a, b = (model(inputs_embeds=t, use_cache=False).logits[:, 6:] for t in (x, swapped))
    assert (a - b).abs().max() < 1e-12


@pytest.mark.parametrize("which", ["rmsnorm", "rmsnorm_full"])
def test_qk_norm_removes_the_size_of_q_and_k(build, payload, block, x, which):
    model = made(build, payload, block, "sdpa", qk_norm=which, qkv_bias=False)
    mixer = model.model.layers[0].mixer
    widths = (6, 6) if which == "rmsnorm" else (24, 12)
    assert (mixer.q_norm.weight.numel(), mixer.k_norm.weight.numel()) == widths
    _, before = run_mixer(model, x)
    with torch.no_grad():
        if which == "rmsnorm":  # each head by itself
            mixer.q_proj.weight[:6] *= 30.0
            mixer.k_proj.weight[6:] *= 40.0
        else:
            mixer.q_proj.weight *= 30.0
            mixer.k_proj.weight *= 40.0
    _, after = run_mixer(model, x)
    assert (before - after).abs().max() < 1e-2 * before.std()


def test_attention_dropout_acts_in_training_only(build, payload, block, kernel, x):
    model = made(build, payload, block, kernel, attn_drop=0.5)
    a, b = run_mixer(model, x)[1], run_mixer(model, x)[1]
    assert torch.equal(a, b)
    model.train()
    assert not torch.equal(run_mixer(model, x)[1], a)


@pytest.fixture
def probe():
    """A kernel registered under a name of its own, that masks only what it is told by name; and what it was told."""
    calls = []

    def kernel(module, q, k, v, mask, *, dropout, scaling, sliding_window=None, softcap=None, position_ids=None, **_):
        assert mask is None
        calls.append((sliding_window, softcap))
        k, v = (t.repeat_interleave(module.num_key_value_groups, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        t, s = scores.shape[-2:]
        distance = torch.arange(s - t, s)[:, None] - torch.arange(s)[None]
        hidden = (distance < 0) | (distance >= (sliding_window or s))
        if t == s:
            document = (position_ids == 0).cumsum(1)
            hidden = hidden | (document[:, :, None] != document[:, None])[:, None]
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2), None

    AttentionInterface.register("probe", kernel)
    yield calls
    AttentionInterface._global_mapping.pop("probe")


@pytest.mark.parametrize(
    ("options", "changes", "named", "used"),
    [
        ({"window": 5}, {}, {}, True),
        ({"window": 5, "logit_softcap": 0.7}, {}, {}, True),
        ({}, {}, {"position_ids": torch.cat((torch.arange(8), torch.arange(T - 8)))[None]}, True),
        ({"window": 6, "window_mode": "dilated", "window_dilation": 2}, {}, {}, False),
        ({"window": 3, "window_mode": "nsa", "window_dilation": 2}, {}, {}, False),
        ({}, {"positional": "alibi", "rope_parameters": None}, {}, False),
        ({}, {}, {"attention_mask": torch.tensor([[0] * 4 + [1] * (T - 4)])}, False),
    ],
)
def test_other_kernels_get_only_what_they_can_do(build, payload, block, probe, options, changes, named, used):
    """Whatever kernel is chosen the result is that of the plain one."""
    model = made(build, payload, block, "eager", changes=changes, **options)
    ids = torch.randint(2, 67, (1, T), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = model(ids, use_cache=False, **named).logits
        model.config._attn_implementation = "probe"
        got = model(ids, use_cache=False, **named).logits
        real = named.get("attention_mask", torch.ones(1, T))[0] > 0
        assert (got - want)[:, real].abs().max() < 1e-12
        if not named:
            first = model(ids[:, :7], use_cache=True)
            assert (first.logits - want[:, :7]).abs().max() < 1e-12
            for t in range(7, T):
                step = model(ids[:, t : t + 1], cache=first.past_key_values, use_cache=True)
                assert (step.logits[:, 0] - want[:, t]).abs().max() < 1e-12
    assert bool(probe) is used

"""Sinks against a softmax that has them in it, on every kernel."""

import pytest
import torch

from eulerstack.modeling.op_mask import alibi_slopes

T = 17
FIXED = {"n_per_head": 3, "learnable": False}


def learned(n):
    return {"n_per_head": n, "learnable": True}


@pytest.fixture(params=["eager", "sdpa"])
def made(request, build, payload, block):
    """`made(sinks, **options)`: a float64 model of one layer with sinks of some size, on each kernel."""

    def model(sinks, positional="rope", **options):
        rope = {} if positional == "rope" else {"rope_parameters": None}
        layer = block(attention_sinks=sinks, qkv_bias=False, **options)
        made = build(payload(layer, positional=positional, **rope), torch.float64)
        made.config._attn_implementation = request.param
        if made.model.layers[0].mixer.sinks is not None:
            torch.nn.init.normal_(made.model.layers[0].mixer.sinks, generator=torch.Generator().manual_seed(6))
        return made

    return model


@pytest.fixture
def x():
    return torch.randn(2, T, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def ran(model, x):
    """What the mixer of the only layer reads and gives."""
    seen = []
    hook = model.model.layers[0].mixer.register_forward_hook(lambda module, args, out: seen.append((args[0], out[0])))
    model(inputs_embeds=x, use_cache=False)
    hook.remove()
    return seen[0]


def by_definition(mixer, x, positional, sinks):
    """Sinks [H, n] as further columns of the scores, which lead to no value."""
    h, g, d = mixer.n_heads, mixer.n_kv_heads, mixer.head_dim
    q, k, v = (p(x).unflatten(-1, (-1, d)).transpose(1, 2) for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    if positional == "rope":
        angle = torch.arange(T, dtype=x.dtype)[:, None] / 10000.0 ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
        turn = torch.polar(torch.ones_like(angle), angle)
        q, k = (torch.complex(t[..., : d // 2], t[..., d // 2 :]) * turn for t in (q, k))
        q, k = (torch.cat((t.real, t.imag), -1) for t in (q, k))
    k, v = (t.repeat_interleave(h // g, 1) for t in (k, v))
    scores = mixer.scaling * q @ k.transpose(-1, -2)
    if mixer.logit_softcap is not None:
        scores = mixer.logit_softcap * torch.tanh(scores / mixer.logit_softcap)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    if positional == "alibi":
        scores = scores - torch.tensor(alibi_slopes(h), dtype=x.dtype)[:, None, None] * distance
    scores = scores.masked_fill((distance < 0) | (distance >= (mixer.window.size or T)), -torch.inf)
    columns = sinks[None, :, None].expand(len(x), -1, T, -1)
    weights = torch.cat((scores, columns), -1).softmax(-1)[..., :T]
    return mixer.o_proj((weights @ v).transpose(1, 2).flatten(2))


CASES = [
    (learned(1), "rope", {}),
    (learned(2), "rope", {"window": 5}),
    (learned(3), "alibi", {}),
    (learned(1), "alibi", {"window": 4, "n_kv_heads": 1}),
    (learned(2), "none", {"logit_softcap": 0.5}),
    (FIXED, "rope", {}),
    (FIXED, "none", {"n_kv_heads": 4}),
]


@pytest.mark.parametrize(("sinks", "positional", "options"), CASES)
def test_against_the_definition_with_gradients(made, x, sinks, positional, options):
    model = made(sinks, positional, **options)
    mixer, out = model.model.layers[0].mixer, []
    read, y = ran(model, x)
    logits = torch.zeros(4, 3, dtype=torch.float64) if mixer.sinks is None else mixer.sinks.view(4, -1)
    for result in (y, by_definition(mixer, read.detach(), positional, logits)):
        grads = torch.autograd.grad(result.sin().sum(), list(mixer.parameters()), retain_graph=True)
        out.append([result, *grads])
    for got, want in zip(*out, strict=True):
        assert (got - want).abs().max() < 1e-11 * want.abs().max()


def test_sinks_take_mass(made, x):
    """With more of it on sinks, less of any value comes through, down to none."""
    model, sizes = made(learned(1)), []
    for level in (-30.0, 0.0, 3.0, 30.0):
        torch.nn.init.constant_(model.model.layers[0].mixer.sinks, level)
        with torch.no_grad():
            sizes.append(ran(model, x)[1].norm().item())
    without = made(None)
    without.load_state_dict({n: p for n, p in model.state_dict().items() if "sinks" not in n})
    with torch.no_grad():
        assert sizes[0] == pytest.approx(ran(without, x)[1].norm().item(), rel=1e-9)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 1e-9 * sizes[0]


@pytest.mark.parametrize(("sinks", "shape"), [(learned(1), (4,)), (learned(3), (4, 3)), (FIXED, None), (None, None)])
def test_what_is_stored(made, sinks, shape):
    found = {name: tuple(t.shape) for name, t in made(sinks).state_dict().items() if "sink" in name}
    assert found == ({} if shape is None else {"model.layers.0.mixer.sinks": shape})


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("lengths", [(1,) * T, (6, 1, 7, 3)])
def test_with_a_cache_padding_and_documents(made, window, lengths):
    model = made(learned(2), window=window)
    ids = torch.randint(2, 67, (2, T), generator=torch.Generator().manual_seed(1))
    places = torch.cat((torch.arange(7), torch.arange(T - 7)))[None].expand(2, -1)
    with torch.no_grad():
        alone = torch.cat([model(ids[:, a:b], use_cache=False).logits for a, b in ((0, 7), (7, T))], 1)
        past, out, at = None, [], 0
        for n in lengths:
            now = {"position_ids": places[:, at : at + n], "past_key_values": past, "use_cache": True}
            step = model(ids[:, at : at + n], **now)
            past, at = step.past_key_values, at + n
            out.append(step.logits)
        padded = torch.cat((torch.full((2, 3), 5), ids[:, :7]), 1)
        mask = torch.cat((torch.zeros(2, 3), torch.ones(2, 7)), 1).long()
        beside = model(padded, attention_mask=mask, use_cache=False).logits[:, 3:]
    assert (torch.cat(out, 1) - alone).abs().max() < 1e-12
    assert (beside - alone[:, :7]).abs().max() < 1e-12

"""Hyena against the paper's recurrence written out: filters point by point, convolutions as double loops."""

import math
from types import SimpleNamespace

import pytest
import torch

from eulerstack.modeling.context import Context
from eulerstack.modeling.initial import Init, draw, rules_of
from eulerstack.modeling.mixer_hyena import ImplicitFilter, Mixer

B, T, D, L = 3, 23, 6, 16
SMALL = {"depth": 2, "filter_hidden": 5, "filter_decay": 3.0, "short_conv": 3}


def mixer(dtype=torch.float64, **changes) -> Mixer:
    torch.manual_seed(0)
    made = Mixer(SimpleNamespace(hidden_size=D, max_position_embeddings=L), 0, **SMALL | changes)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.5)
    return made.to(dtype)


def tap(m: Mixer, distance: int) -> torch.Tensor:
    """The filters at one distance, `[N, D]`: section 3.3, with the window of equation 7 less its bias."""
    p, s = dict(m.filter.named_parameters()), distance / L
    x = (
        [s]
        + [math.cos(2 * math.pi * f * s) for f in range(1, 17)]
        + [math.sin(2 * math.pi * f * s) for f in range(1, 17)]
    )
    x = torch.tensor(x, dtype=torch.float64)
    for layer in range(3):
        x = torch.sin(p["frequency"] * (p[f"layers.{layer}.weight"] @ x + p[f"layers.{layer}.bias"]))
    rates = torch.tensor([m.filter.decay * (c + 1) / D for c in range(D)], dtype=torch.float64)
    return (p["layers.3.weight"] @ x).view(m.depth, D) * torch.exp(-rates * s)


def document_by_hand(m: Mixer, document) -> torch.Tensor:
    """Definition 3.1 for the real tokens of one document `[n, D]`."""
    p, n = dict(m.named_parameters()), len(document)
    taps, kernel = [tap(m, distance) for distance in range(n)], p["short_conv.weight"][:, 0]
    u = [p["in_proj.weight"] @ token for token in document]
    conv = [sum(kernel[:, -1 - j] * u[t - j] for j in range(min(t + 1, kernel.shape[1]))) for t in range(n)]
    parts = [(c + p["short_conv.bias"]).view(-1, D) for c in conv]
    z = [part[-1] for part in parts]
    for i in range(m.depth):
        z = [parts[t][i] * (sum(taps[t - s][i] * z[s] for s in range(t + 1)) + p["D"][i] * z[t]) for t in range(n)]
    return torch.stack([p["out_proj.weight"] @ token for token in z])


def row_by_hand(m: Mixer, row, keep, starts) -> torch.Tensor:
    """Outputs of real tokens, zeros on padding."""
    documents: list[list[int]] = [[]]
    for t in range(T):
        if starts[t]:
            documents.append([])
        if keep[t]:
            documents[-1].append(t)
    y = torch.zeros_like(row)
    for slots in filter(None, documents):
        at = torch.tensor(slots)
        y = y.index_put((at,), document_by_hand(m, row[at]))
    return y


@pytest.mark.parametrize(
    "changes", [{}, {"depth": 3, "filter_decay": 0.0, "short_conv": 1}, {"depth": 1, "short_conv": 4}]
)
def test_outputs_and_all_gradients_are_those_of_the_paper(changes, rows):
    m, x = mixer(**changes), rows.tokens(D)
    rows.same(m, x, rows.by_hand(row_by_hand, m, x))


@pytest.mark.parametrize("cuts", [[9, 1, 13], [1] * T], ids=["chunks", "steps"])
def test_pieces_give_the_whole_and_leave_old_states_alone(cuts, rows):
    """What is held of padding is of no account."""
    real = rows.real[..., None, None]
    rows.same_in_pieces(mixer(), rows.tokens(D), cuts, lambda state: state | {"past": state["past"] * real})


def test_state_is_returned_only_when_asked_for_and_in_the_promised_shapes(plain):
    m, x = mixer(torch.bfloat16), plain.tokens(D, torch.bfloat16)
    assert m(x, plain.context(), None)[1] is None
    y, state = m(x, plain.context(use_cache=True), None)
    assert y.dtype == torch.bfloat16
    assert {k: (v.shape, v.dtype) for k, v in state.items()} == {
        "past": ((B, T, 2, D), torch.bfloat16),
        "conv": ((B, 3 * D, 2), torch.bfloat16),
    }


def test_half_precision_decodes_what_it_reads(plain):
    """Inputs of the long convolutions are rounded before they are read, so a cache of rounded ones loses nothing."""
    m, x = mixer(torch.bfloat16), plain.tokens(D, torch.bfloat16).detach()
    want, state, steps = m(x, plain.context(), None)[0], None, []
    for t in range(T):
        y, state = m(x[:, t : t + 1], plain.context(slice(t, t + 1), use_cache=True), state)
        steps.append(y)
    assert (torch.cat(steps, 1) - want).abs().max() <= 0.02 * want.std()


def test_a_filter_is_the_same_in_every_call_and_goes_on_beyond_the_length_it_is_made_for():
    m = mixer()
    short, long = m.filter(7), m.filter(3 * L)
    torch.testing.assert_close(short, long[:, :7], rtol=1e-14, atol=1e-14)
    beyond = torch.stack([tap(m, distance) for distance in range(3 * L)], 1)
    torch.testing.assert_close(long, beyond)
    assert long[:, 2 * L :].abs().amax((1, 2)).min() > 1e-6


def test_first_filters_have_the_energy_of_one_tap_whatever_the_model_is_drawn_with():
    torch.manual_seed(0)
    made = ImplicitFilter(2, 64, 64, 0.0, 1024)
    for module in made.modules():
        for scheme, std in (("mup", 5.0), ("normal", 0.02)):
            for name, rule in rules_of(module, Init(scheme, std, 3)).items():
                draw(getattr(module, name), rule)
    with torch.no_grad():
        energy = made(1024).square().sum(1).mean()
    assert 0.05 < energy < 0.5
    assert (made.frequency == 14).all()


def test_filters_held_while_decoding_are_those_of_the_weights(plain):
    """A step after a step makes none, a step beyond them does, and so does a change of the weights or a new text."""
    m, x, made = mixer(), torch.cat([plain.tokens(D).detach()] * 12, 1), []
    m.filter.layers[0].register_forward_hook(lambda *_: made.append(1))

    def call(now: slice, state):
        positions = torch.arange(now.stop).expand(B, -1)
        with torch.no_grad():
            return m(
                x[:, now], Context(positions[:, now], key_positions=positions, past=now.start, use_cache=True), state
            )

    y, state = call(slice(0, 250), None)
    assert len(made) == 1
    steps = [y]
    for t in range(250, 256):
        y, state = call(slice(t, t + 1), state)
        steps.append(y)
    assert len(made) == 1
    y, state = call(slice(256, 259), state)
    assert len(made) == 2
    whole = call(slice(0, 259), None)[0]
    assert len(made) == 3
    torch.testing.assert_close(torch.cat([*steps, y], 1), whole)
    with torch.no_grad():
        m.filter.layers[3].weight.mul_(2)
    changed = call(slice(259, 260), state)[0]
    assert len(made) == 4
    m.filter.made_for = None
    assert torch.equal(changed, call(slice(259, 260), state)[0])


def test_autocast_does_not_reach_the_filter():
    made = mixer(torch.float32).filter
    with torch.no_grad():
        want = made(T)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(made(T), want)


@pytest.mark.parametrize("taps", [1000, 9000])
def test_filters_in_float32_are_those_of_float64_also_beyond_the_length(taps):
    made = ImplicitFilter(2, 16, 64, 0.0, 1000)
    for module in made.modules():
        for name, rule in rules_of(module, Init("normal", 0.02, 2)).items():
            torch.manual_seed(0)
            draw(getattr(module, name), rule)
    single = made(taps)
    exact = made.double()(taps)
    assert (single - exact).abs().max() < 2e-4 * exact.abs().max()

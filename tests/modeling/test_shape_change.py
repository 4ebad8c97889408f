"""The projections against their equations token by token, and their state against the whole sequence.

B batch, T tokens.
"""

import pytest
import torch
from torch.nn import functional as F

from eulerstack.modeling.context import Context
from eulerstack.modeling.initial import Init, Normal, rules_of
from eulerstack.modeling.shape_change import ShapeChange

B, T, WIDE_IN, WIDE_OUT = 2, 9, 5, 7
PROJECTIONS = ("linear", "conv1d", "mlp")
EXACT = 1e-12


def change(projection: str, d_in: int = WIDE_IN, d_out: int = WIDE_OUT) -> ShapeChange:
    made = ShapeChange(None, d_in, d_out, projection=projection, to_residual=False)
    generator = torch.Generator().manual_seed(3)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return made.double()


def inputs() -> torch.Tensor:
    return torch.randn(B, T, WIDE_IN, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def context(length: int = T, use_cache: bool = False, **facts) -> Context:
    return Context(positions=torch.arange(length).expand(B, length), use_cache=use_cache, **facts)


def naive(made: ShapeChange, x: torch.Tensor, keep=None, starts=None) -> torch.Tensor:
    """The equations; a convolution counts real tokens back to the start of their document. Zeros on padding."""
    y = x.new_zeros(*x.shape[:2], WIDE_OUT)
    for b in range(len(x)):
        past: list[torch.Tensor] = []
        for t in range(x.shape[1]):
            if keep is not None and not keep[b, t]:
                continue
            past = [] if starts is not None and starts[b, t] else past
            past.append(x[b, t])
            if made.projection == "linear":
                y[b, t] = made.proj.weight @ x[b, t]
            elif made.projection == "mlp":
                y[b, t] = made.down.weight @ F.silu(made.up.weight @ x[b, t])
            else:
                for j in range(min(3, len(past))):
                    y[b, t] += made.conv.weight[:, :, 2 - j] @ past[-1 - j]
    return y


KEEP = torch.tensor([[0, 1, 1, 0, 1, 0, 0, 1, 1], [1, 1, 0, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
STARTS = torch.tensor([[0, 0, 0, 0, 1, 0, 0, 0, 1], [0, 1, 0, 1, 0, 0, 0, 0, 0]], dtype=torch.bool)
FACTS = [{}, {"keep": KEEP}, {"starts": STARTS}, {"keep": KEEP, "starts": STARTS}]


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: "+".join(facts) or "plain")
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_equations_and_gradients(projection, facts):
    made = change(projection)
    x, other = inputs().requires_grad_(), inputs().requires_grad_()
    got, want = made(x, context(**facts), None)[0], naive(made, other, **facts)
    if "keep" in facts:
        got = got.masked_fill(~KEEP[..., None], 0.0)
    assert (got - want).abs().max() < EXACT
    mine, theirs = (
        torch.autograd.grad(y.sin().sum(), (leaf, *made.parameters())) for y, leaf in ((got, x), (want, other))
    )
    assert all((a - b).abs().max() < EXACT for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: "+".join(facts) or "plain")
@pytest.mark.parametrize("lengths", [(1,) * T, (4, 1, 4), (2, 7)])
def test_a_convolution_in_chunks(lengths, facts):
    made, x = change("conv1d"), inputs()
    whole, last = made(x, context(use_cache=True, **facts), None)
    state, at, parts = None, 0, []
    for n in lengths:
        cut = {name: value[:, at : at + n] for name, value in facts.items()}
        before = None if state is None else {name: value.clone() for name, value in state.items()}
        y, after = made(x[:, at : at + n], context(n, use_cache=True, **cut), state)
        assert state is None or torch.equal(state["tail"], before["tail"])
        state, at = after, at + n
        parts.append(y)
    gap = (torch.cat(parts, 1) - whole).abs()
    assert (gap if "keep" not in facts else gap[KEEP]).max() < EXACT
    assert torch.equal(state["tail"], last["tail"])


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_state_only_where_there_is_one_to_keep(projection):
    made = change(projection)
    assert made(inputs(), context(), None)[1] is None
    state = made(inputs(), context(use_cache=True), None)[1]
    assert (state is None) == (projection != "conv1d")
    assert made.croppable == (projection != "conv1d")


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_the_last_map_knows_that_it_writes_to_the_residual_stream(projection):
    made = ShapeChange(None, WIDE_IN, WIDE_OUT, projection=projection, to_residual=True)
    init = Init("scaled_residual", 0.5, 8)
    rules = {name: rules_of(module, init).get("weight") for name, module in made.named_modules()}
    stds = {name: rule.std for name, rule in rules.items() if isinstance(rule, Normal)}
    last = {"linear": "proj", "conv1d": "conv", "mlp": "down"}[projection]
    assert stds.pop(last) == pytest.approx(0.5 / 4)
    assert all(std == 0.5 for std in stds.values())


def test_the_mlp_is_as_wide_as_its_wider_end():
    assert change("mlp", 5, 7).up.out_features == change("mlp", 7, 5).up.out_features == 7


def test_an_unknown_projection_is_refused():
    with pytest.raises(ValueError, match="convolution"):
        change("convolution")


@pytest.mark.parametrize("residual", ["sequential", "parallel"])
@pytest.mark.parametrize("mixer", ["attention", "mamba2"])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_in_a_model(projection, mixer, residual, build, payload, block):
    """Another width inside: chunks, packed documents and padding stay exact, and every parameter learns."""
    made = block(mixer, residual={"type": residual}) | {"shape_change": {"d_out": 15, "projection": projection}}
    model = build(payload(made, block()), torch.float64)
    layer = model.model.layers[0]
    assert layer.ffn.gate_proj.in_features == 15
    assert hasattr(layer, "ffn_in") == (residual == "sequential")
    ids = torch.randint(2, 67, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        full = model(input_ids=ids, use_cache=False).logits
        past, parts = None, []
        for a, b in ((0, 5), (5, 6), (6, 12)):
            out = model(input_ids=ids[:, a:b], cache=past, use_cache=True)
            past, parts = out.past_key_values, [*parts, out.logits]
        assert (torch.cat(parts, 1) - full).abs().max() < 1e-9
        places = torch.cat((torch.arange(5), torch.arange(7)))[None].expand(2, -1)
        packed = model(input_ids=ids, position_ids=places, use_cache=False).logits
        alone = [model(input_ids=ids[:, a:b], use_cache=False).logits for a, b in ((0, 5), (5, 12))]
        assert (packed - torch.cat(alone, 1)).abs().max() < 1e-9
        mask = torch.ones(2, 15, dtype=torch.long)
        mask[:, :3] = 0
        left = model(input_ids=torch.cat((ids[:, :3], ids), 1), attention_mask=mask, use_cache=False).logits
        assert (left[:, 3:] - full).abs().max() < 1e-9
    model.train()(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())

"""Quantisation-aware training: the model is the one whose weights were quantised by hand, its gradients go straight."""

import copy
import pickle

import pytest
import torch
from torch import nn

from eulerstack.modeling.fake_quant import QuantisedLinear, quantisable, quantise
from eulerstack.modeling.op_fake_quant import quantised

SPEC = {"dtype": "fp4", "scope": [], "dequant_to": None}
IDS = torch.randint(2, 67, (2, 13), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def blocks(block):
    """Linear layers, experts, an absorbed latent, time steps and convolutions."""
    return [block("latent_attention", "moe"), block("mamba1", "gated_mlp"), block("compressed_attention", "none")]


@pytest.fixture
def make(build, payload, blocks):
    def made(spec: dict | None = None, **changes):
        return build(payload(*blocks, quantisation=None if spec is None else SPEC | spec, **changes), torch.float64)

    return made


def by_hand(plain: nn.Module, names, spec: dict) -> nn.Module:
    """A copy of `plain` with the named weights rounded."""
    made, spec = copy.deepcopy(plain), SPEC | spec
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in names:
                value = quantised(parameter, spec["dtype"])
                parameter.copy_(value if spec["dequant_to"] is None else quantised(value, spec["dequant_to"]))
    return made


def all_of(model) -> list[str]:
    return [name for name, *_ in quantisable(model)]


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("dtype", ["fp4", "fp8", "int8"])
@pytest.mark.parametrize("dequant_to", [None, "bf16", "fp8"])
def test_forward_is_that_of_weights_quantised_by_hand(make, dtype, dequant_to, mode):
    spec = {"dtype": dtype, "dequant_to": dequant_to}
    model, plain = make(spec), make()
    other = by_hand(plain, all_of(plain), spec)
    a, b, c = (m.train(mode == "train")(input_ids=IDS, use_cache=False).logits for m in (model, other, plain))
    assert (a - b).abs().max() < 1e-12
    assert (a - c).abs().max() > 1e-4


def test_gradients_are_those_at_the_quantised_weights(make):
    """A straight-through estimate: the gradient of the loss where the rounded weights are, given to the true ones."""
    model, plain = make({}), make()
    other = by_hand(plain, all_of(plain), {})
    for m in (model, other):
        m.train()(input_ids=IDS, labels=IDS).loss.backward()
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (p.grad - q.grad).abs().max() <= 1e-12 * max(1.0, q.grad.abs().max()), name
    assert all((p.grad != 0).any() for name, p in model.named_parameters() if name in all_of(plain))


@pytest.mark.parametrize(
    "scope",
    [
        ["model.layers.0.*"],
        ["model.layers.*.ffn.*", "model.layers.1.mixer.in_proj.weight"],
        ["*.experts.down_proj"],
        ["lm_head.weight"],
    ],
)
@pytest.mark.parametrize("policy", ["uniform", "layered_safe"])
def test_a_scope_names_what_is_quantised_and_nothing_else_is(make, scope, policy):
    from fnmatch import fnmatchcase

    changes = {"tie_word_embeddings": False, "dtype_policy": policy}
    model, plain = make({"scope": scope}, **changes), make(**changes)
    names = [name for name in all_of(plain) if any(fnmatchcase(name, pattern) for pattern in scope)]
    assert 0 < len(names) < len(all_of(plain))
    got, want, without = (m(input_ids=IDS, use_cache=False).logits for m in (model, by_hand(plain, names, {}), plain))
    assert (got - want).abs().max() < 1e-12
    assert (got - without).abs().max() > 1e-6


def test_steps_on_the_cache_use_the_same_weights(make):
    """Also the absorbed form of a latent, which multiplies by weights and calls no layer."""
    model, past, steps = make({}), None, []
    with torch.no_grad():
        full = model(input_ids=IDS, use_cache=False).logits
        for t in range(IDS.shape[1]):
            out = model(input_ids=IDS[:, t : t + 1], cache=past, use_cache=True)
            past = out.past_key_values
            steps.append(out.logits)
    assert (torch.cat(steps, 1) - full).abs().max() < 1e-9


def test_what_is_delicate_stays_exact(make):
    names = set(all_of(make()))
    left = {n for n, p in make().named_parameters() if n not in names and p.dim() > 1}
    kinds = {n.partition(".layers.")[2].partition(".")[2] or n for n in left}
    assert kinds == {
        "model.embed_tokens.weight",
        "ffn.router.weight",
        "mixer.conv1d.weight",
        "mixer.dt_proj.weight",
        "mixer.A_log",
        "mixer.pool.position_bias",
        "mixer.indexer.pool.position_bias",
    }
    untied = make(tie_word_embeddings=False)
    assert set(all_of(untied)) - names == {"lm_head.weight"}
    quantise(untied, SPEC)
    assert type(untied.lm_head) is nn.Linear


def test_names_hooks_and_types_stay(make):
    model, plain = make({}), make()
    assert list(model.state_dict()) == list(plain.state_dict())
    layer = model.model.layers[0].mixer.o_proj
    assert isinstance(layer, nn.Linear)
    assert isinstance(layer, QuantisedLinear)
    assert layer.to_residual
    again = pickle.loads(pickle.dumps(copy.deepcopy(model.model.layers)))
    assert again[0].mixer.o_proj.formats == ("fp4", None)
    assert torch.equal(again[0].mixer.o_proj(torch.ones(1, 24).double()), layer(torch.ones(1, 24).double()))


def test_meta_weights_are_quantised_when_they_arrive(make, build, payload, blocks):
    with torch.device("meta"):
        empty = build(payload(*blocks, quantisation=SPEC), torch.float64)
    assert all(p.is_meta for p in empty.parameters())
    full = make({})
    empty.load_state_dict(full.state_dict(), assign=True)
    empty.tie_weights()
    a, b = (m(input_ids=IDS, use_cache=False).logits for m in (empty, full))
    assert torch.equal(a, b)


def test_a_pattern_that_matches_nothing_is_refused_by_its_name(make):
    with pytest.raises(ValueError, match=r"'\*\.k_porj\.weight', 'model\.embed_tokens\.weight'"):
        make({"scope": ["*.k_porj.weight", "model.embed_tokens.weight", "*.o_proj.weight"]})
    with pytest.raises(ValueError, match="lm_head"):
        make({"scope": ["lm_head.weight"]})  # tied to the table


@pytest.mark.parametrize("scope", [[], ["model.layers.0.*"], ["lm_head.weight", "*.o_proj.*"]])
def test_the_decoder_alone_is_quantised_as_in_the_whole(make, scope):
    whole = make({"scope": scope}, tie_word_embeddings=False)
    alone = type(whole.model)(whole.config).double().eval()
    alone.load_state_dict(whole.model.state_dict())
    plain = make(tie_word_embeddings=False)
    plain.load_state_dict(whole.state_dict())
    with torch.no_grad():
        want = whole.model(IDS, use_cache=False).last_hidden_state
        assert torch.equal(alone(IDS, use_cache=False).last_hidden_state, want)
        assert not torch.equal(plain.model(IDS, use_cache=False).last_hidden_state, want)

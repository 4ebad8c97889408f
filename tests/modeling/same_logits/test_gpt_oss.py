"""gpt-oss, written as a preset, against transformers' own class with the same weights.

Whole: sinks, biases, a window in every other layer, yarn without rounded bounds, experts with clamped gates chosen by
a router with a bias. The weights of the experts are large, so that both clamps are reached.
"""

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss import modeling_gpt_oss

from eulerstack.modeling.context import Context
from eulerstack.modeling.op_rope import inverse_frequencies

NAMES = {
    "self_attn.": "mixer.",
    "mlp.experts.gate_up_proj_bias": "ffn.experts.gate_up_bias",
    "mlp.experts.down_proj_bias": "ffn.experts.down_bias",
    "mlp.": "ffn.",
    "input_layernorm": "mixer_norm",
    "post_attention_layernorm": "ffn_norm",
}
EARLY = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "original_max_position_embeddings": 16}
EARLY |= {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
# What the config says of the angles, and what the preset does: as published, and stretched within the texts read here.
STRETCHED = {
    "published": (None, {"factor": 32.0, "original_max_position_embeddings": 4096}),
    "early": (EARLY, {"factor": 8.0, "original_max_position_embeddings": 16}),
}
ATTENTION = {"qkv_bias": True, "o_bias": True, "attention_sinks": {}}
EXPERTS = {"type": "moe", "activation": "swiglu_clamped", "bias": True}
MOE = {"experts": 5, "top_k": 2, "d_ff": 13, "router_bias": True}


@pytest.fixture(params=STRETCHED)
def stretched(request):
    return STRETCHED[request.param]


@pytest.fixture
def theirs(randomise, stretched):
    shape = {"vocab_size": 271, "hidden_size": 30, "intermediate_size": 13, "num_hidden_layers": 4, "head_dim": 6}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "sliding_window": 9}
    experts = {"num_local_experts": 5, "num_experts_per_tok": 2}
    model = randomise(GptOssForCausalLM(GptOssConfig(**shape, **heads, **experts, rope_parameters=stretched[0])))
    for layer in model.model.layers:
        layer.mlp.experts.gate_up_proj.data *= 6
    return model


@pytest.fixture
def state(theirs, renamed):
    """Experts turned, gates before ups and not between them."""
    return {name: ours_of(name, value) for name, value in renamed(theirs.state_dict(), NAMES).items()}


def ours_of(name: str, value: torch.Tensor) -> torch.Tensor:
    if "experts.gate_up" in name:
        value = torch.cat((value[..., 0::2], value[..., 1::2]), -1)
    return value.transpose(1, 2) if "experts" in name and value.dim() == 3 else value


@pytest.fixture
def tree(preset, layer, stretched):
    return written(preset, layer, stretched)


def written(preset, layer, stretched, activation="swiglu_clamped"):
    moe = EXPERTS | {"moe": MOE, "activation": activation}
    near, far = (layer(ATTENTION | reach, moe) for reach in ({"window": 9}, {}))
    sizes = {"d_model": 30, "n_heads": 6, "n_kv_heads": 2, "head_dim": 6, "max_seq_len": 131072}
    scaling = {"type": "yarn", "truncate": False} | stretched[1]
    embedding = {"rope_theta": 150000.0, "rope_scaling": scaling}
    return preset(near, far, schedule=[0, 1, 0, 1], embedding=embedding, **sizes)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_the_whole_model(theirs, state, tree, model_of, agree, kernel):
    ours = model_of(tree, theirs, state)
    ours.config._attn_implementation = kernel
    agree(ours, theirs)


def test_the_whole_model_in_float64(theirs, state, tree, model_of, agree, monkeypatch):
    """Their norms compute in torch.float32 by name, which here means float64, and their angles are made again in it."""

    class Wide:
        float32 = torch.float64

        def __getattr__(self, name):
            return getattr(torch, name)

    ours, theirs = model_of(tree, theirs, state).double(), theirs.double()
    frequencies, factor = inverse_frequencies(ours.config, 6, torch.tensor(41), torch.float64)

    def angles(x, position_ids):
        turned = position_ids[..., None] * frequencies
        return turned.cos() * factor, turned.sin() * factor

    torch.testing.assert_close(frequencies.float(), theirs.model.rotary_emb.original_inv_freq.float())
    monkeypatch.setattr(modeling_gpt_oss, "torch", Wide())
    monkeypatch.setattr(theirs.model.rotary_emb, "forward", angles)
    agree(ours, theirs, 1e-12)


VECTORS = ("mixer.sinks", "ffn.router.bias", "ffn.experts.gate_up_bias", "ffn.experts.down_bias")


@pytest.mark.parametrize("part", VECTORS)
def test_each_of_its_vectors_makes_them_agree(theirs, state, tree, model_of, agree, part):
    for i in range(4):
        name = f"model.layers.{i}.{part}"
        state[name] = state[name] + torch.linspace(-1, 1, state[name].shape[-1])
    ours = model_of(tree, theirs, state)
    with pytest.raises(AssertionError):
        agree(ours, theirs)


def test_another_gate_disagrees(theirs, state, preset, layer, stretched, model_of, agree):
    ours = model_of(written(preset, layer, stretched, "swiglu"), theirs, state)
    with pytest.raises(AssertionError):
        agree(ours, theirs)


@pytest.mark.parametrize("stretched", ["published"], indirect=True)
def test_experts_alone_with_gradients(theirs, state, tree, model_of):
    """One layer on the same input in float64, with both clamps reached: output, and the gradient of every weight."""
    ours = model_of(tree, theirs, state).double().model.layers[1].ffn
    other = theirs.double().model.layers[1].mlp
    x = torch.randn(3, 23, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inner = torch.einsum("btd,edf->ebtf", x, other.experts.gate_up_proj)
    gate, up = inner[..., 0::2], inner[..., 1::2]
    assert min(gate.max(), up.max(), -up.min()) > 8
    y, want = ours(x, Context(positions=torch.arange(23).expand(3, -1)))[0], other(x)[0]
    assert (y - want).abs().max() < 1e-12 * want.std()
    for out in (y, want):
        out.sin().sum().backward()
    for name, weight in other.named_parameters():
        grad = ours_of(f"mlp.{name}", weight.grad)
        mine = ours.get_parameter(name.replace("_proj_bias", "_bias")).grad
        assert (mine - grad).abs().max() < 1e-12 * grad.abs().max(), name


@pytest.mark.parametrize("stretched", ["early"], indirect=True)
@pytest.mark.parametrize(("place", "window"), [(0, 9), (1, None)])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_attention_alone_with_gradients(theirs, state, tree, model_of, place, window, kernel):
    """One layer on the same input in float64: output, and the gradient of every weight, sinks among them."""
    ours = model_of(tree, theirs, state).double()
    ours.config._attn_implementation = kernel
    mine, other = ours.model.layers[place].mixer, theirs.double().model.layers[place].self_attn
    x = torch.randn(2, 23, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(23).expand(2, -1)
    distance = torch.arange(23)[:, None] - torch.arange(23)
    hidden = (distance < 0) | (distance >= (window or 23))
    mask = torch.zeros(23, 23, dtype=torch.float64).masked_fill(hidden, -torch.inf)[None, None]
    y, _ = mine(x, Context(positions=positions, key_positions=positions))
    frequencies = 1 / theirs.model.rotary_emb.inv_freq.double().reciprocal()
    angles, factor = positions[..., None] * frequencies, theirs.model.rotary_emb.attention_scaling
    want, _ = other(x, (angles.cos() * factor, angles.sin() * factor), mask)
    assert (y - want).abs().max() < 1e-6
    for out in (y, want):
        out.sin().sum().backward()
    for name, weight in other.named_parameters():
        grad = mine.get_parameter(name).grad
        assert (grad - weight.grad).abs().max() < 1e-5 * weight.grad.abs().max(), name

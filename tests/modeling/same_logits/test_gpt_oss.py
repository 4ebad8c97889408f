"""gpt-oss, written as a preset, against transformers' own class with the same weights.

Its attention is expressed whole: sinks, biases, a window in every other layer, yarn without rounded bounds. Its experts
are (up + 1) gate sigmoid(1.702 gate) within clamps, chosen by a router with a bias. What the language can say of them
is compared: the factor in the sigmoid 1, the clamps out of reach, the router without bias; the one is added to a bias.
"""

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM

from eulerstack.modeling.context import Context

NAMES = {
    "self_attn.": "mixer.",
    "mlp.experts.gate_up_proj_bias": "ffn.experts.gate_up_bias",
    "mlp.experts.down_proj_bias": "ffn.experts.down_bias",
    "mlp.": "ffn.",
    "input_layernorm": "mixer_norm",
    "post_attention_layernorm": "ffn_norm",
}
YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "original_max_position_embeddings": 16}
YARN |= {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
ATTENTION = {"qkv_bias": True, "o_bias": True, "attention_sinks": {}}


@pytest.fixture
def theirs(randomise):
    shape = {"vocab_size": 271, "hidden_size": 30, "intermediate_size": 13, "num_hidden_layers": 4, "head_dim": 6}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128, "sliding_window": 9}
    experts = {"num_local_experts": 5, "num_experts_per_tok": 2, "swiglu_alpha": 1.0, "swiglu_limit": 1e9}
    model = randomise(
        GptOssForCausalLM(GptOssConfig(**shape, **heads, **experts, rope_parameters=YARN, pad_token_id=0))
    )
    for layer in model.model.layers:
        layer.mlp.router.bias = None
    return model


@pytest.fixture
def state(theirs, renamed):
    """Experts turned, gates before ups and not between them, and the one that is added to ups in their bias."""
    return {name: ours_of(name, value) for name, value in renamed(theirs.state_dict(), NAMES).items()}


def ours_of(name: str, value: torch.Tensor) -> torch.Tensor:
    if "gate_up_proj" in name:
        return torch.cat((value[..., 0::2], value[..., 1::2]), -1).transpose(1, 2)
    if "gate_up_bias" in name:
        return torch.cat((value[:, 0::2], value[:, 1::2] + 1), 1)
    return value.transpose(1, 2) if "experts.down_proj" in name else value


@pytest.fixture
def tree(preset, layer):
    moe = {"type": "moe", "bias": True, "moe": {"experts": 5, "top_k": 2, "d_ff": 13}}
    near, far = (layer(ATTENTION | reach, moe) for reach in ({"window": 9}, {}))
    sizes = {"d_model": 30, "n_heads": 6, "n_kv_heads": 2, "head_dim": 6, "max_seq_len": 128}
    scaling = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "truncate": False}
    embedding = {"rope_theta": 150000.0, "rope_scaling": scaling}
    return preset(near, far, schedule=[0, 1, 0, 1], embedding=embedding, **sizes)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_the_whole_model(theirs, state, tree, model_of, agree, kernel):
    ours = model_of(tree, theirs, state)
    ours.config._attn_implementation = kernel
    agree(ours, theirs)


def test_it_is_the_sinks_that_make_them_agree(theirs, state, tree, model_of, agree):
    for i in range(4):
        state[f"model.layers.{i}.mixer.sinks"] = state[f"model.layers.{i}.mixer.sinks"] - 1
    with pytest.raises(AssertionError):
        agree(model_of(tree, theirs, state), theirs)


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

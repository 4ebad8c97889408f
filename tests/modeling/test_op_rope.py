"""Rotary scalings against transformers' own functions and models."""

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eulerstack.modeling.context import Context
from eulerstack.modeling.op_rope import inverse_frequencies, rotary, rotate

TRAINED = 32
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    "yarn fields": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "mscale": 1.3,
        "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "yarn factor": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.25,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


def llama(scaling, theta=500.0):
    if hasattr(LlamaConfig, "rope_scaling"):
        rope = {"rope_parameters": copy.deepcopy(scaling) | {"rope_theta": theta}}
    else:  # the older spelling
        rope = {"rope_scaling": copy.deepcopy(scaling), "rope_theta": theta}
        rope |= {"partial_rotary_factor": scaling.get("partial_rotary_factor", 1.0)}
    return LlamaConfig(
        vocab_size=53,
        hidden_size=24,
        intermediate_size=31,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=12,
        max_position_embeddings=TRAINED,
        **rope,
    )


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", [5, 97])
@pytest.mark.parametrize("share", [1.0, 0.67])
def test_frequencies_are_those_of_transformers(name, length, share):
    scaling = SCALINGS[name] | {"partial_rotary_factor": share}
    config = llama(scaling)
    want, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"), seq_len=length)
    ours = SimpleNamespace(rope_parameters=scaling | {"rope_theta": 500.0}, max_position_embeddings=TRAINED)
    got, ours_factor = inverse_frequencies(ours, 12, torch.tensor(length), torch.float32)
    assert got.shape == want.shape
    assert torch.allclose(got, want, rtol=1e-6, atol=0)
    assert ours_factor == pytest.approx(factor, rel=1e-12)


def test_only_dynamic_looks_at_the_length():
    for name, scaling in SCALINGS.items():
        config = SimpleNamespace(rope_parameters=scaling | {"rope_theta": 500.0}, max_position_embeddings=TRAINED)
        short, long = (inverse_frequencies(config, 12, torch.tensor(n), torch.float64)[0] for n in (7, 70))
        assert torch.equal(short, long) is (name != "dynamic")


def test_unknown_type_is_refused():
    config = SimpleNamespace(rope_parameters={"rope_type": "spiral"}, max_position_embeddings=TRAINED)
    with pytest.raises(ValueError, match="spiral"):
        inverse_frequencies(config, 12, torch.tensor(3), torch.float32)


@pytest.mark.parametrize("name", ["default", *SCALINGS])
def test_same_logits_as_llama_with_the_scaling(name, build, payload, block):
    scaling = SCALINGS.get(name, {"rope_type": "default"})
    torch.manual_seed(0)
    theirs = LlamaForCausalLM(llama(scaling)).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    options = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 12, "scale": 12**-0.5, "qkv_bias": False}
    layer = block(ffn_options={"d_ff": 31}, **options)
    shape = {"vocab_size": 53, "hidden_size": 24, "rms_norm_eps": 1e-6, "max_position_embeddings": TRAINED}
    rope = {"rope_parameters": scaling | {"rope_theta": 500.0}, "tie_word_embeddings": False}
    ours = build(payload(layer, layer, **shape, **rope))
    pairs = {
        "self_attn.": "mixer.",
        "mlp.": "ffn.",
        "input_layernorm": "mixer_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    state = theirs.state_dict()
    for a, b in pairs.items():
        state = {key.replace(a, b): value for key, value in state.items()}
    ours.load_state_dict(state)
    ids = torch.randint(0, 53, (2, 61))  # beyond the trained length
    with torch.no_grad():
        a, b = ours(ids, use_cache=False).logits, theirs(ids, use_cache=False).logits
    assert (a - b).abs().max() < 1e-4 * b.std()


def test_rotation_turns_pairs_and_leaves_the_rest():
    x = torch.randn(2, 7, 3, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(7).expand(2, 7)
    config = SimpleNamespace(
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.6},
        max_position_embeddings=TRAINED,
    )
    context = Context(positions=positions, key_positions=positions)
    y = rotate(x, *rotary(config, context, positions, 10, torch.float64, "now"))
    assert torch.equal(y[..., 6:], x[..., 6:])
    for t in range(7):
        for i in range(3):
            turn = torch.polar(torch.tensor(1.0).double(), torch.tensor(t * 100.0 ** (-2 * i / 6)).double())
            want = torch.complex(x[:, t, :, i], x[:, t, :, i + 3]) * turn
            assert torch.allclose(torch.complex(y[:, t, :, i], y[:, t, :, i + 3]), want, rtol=0, atol=1e-7)

"""With the same weights as a class of transformers, and right where that class is wrong.

Each test shows that the two agree on a whole text first, then what ours gives, and that theirs gives something else.
"""

import pytest
import torch
from transformers import JambaConfig, JambaForCausalLM, MambaConfig, MambaForCausalLM

SIZES = {"d_model": 20, "d_ff": 27, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5}
SSM = {"variant": "mamba1", "d_state": 7, "d_conv": 3, "dt_rank": 3}
WRONG = 0.05  # standard deviations of the logits

MAMBA_NAMES = {"backbone.": "model.", "embeddings": "embed_tokens", "norm_f": "norm_of_all", "norm.": "mixer_norm."}
MAMBA_NAMES |= {"norm_of_all": "norm"}
JAMBA_NAMES = {"mamba.": "mixer.", "self_attn.": "mixer.", "dt_layernorm": "dt_norm", "b_layernorm": "b_norm"}
JAMBA_NAMES |= {"c_layernorm": "c_norm", "feed_forward.": "ffn.", "input_layernorm": "mixer_norm"}
JAMBA_NAMES |= {"pre_ff_layernorm": "ffn_norm", "final_layernorm": "norm"}


@pytest.fixture
def mamba(randomise, preset, layer, model_of, renamed):
    """(ours, theirs): two layers of Mamba."""
    shape = {"vocab_size": 271, "hidden_size": 20, "num_hidden_layers": 2, "state_size": 7, "conv_kernel": 3}
    theirs = randomise(
        MambaForCausalLM(MambaConfig(**shape, time_step_rank=3, pad_token_id=0, tie_word_embeddings=True))
    )
    block = layer({"type": "mamba", "mamba": SSM}, {"type": "none"})
    tree = preset(block, schedule=[0, 0], embedding={"positional": "none"}, head={"tie_weights": True}, **SIZES)
    return model_of(tree, theirs, renamed(theirs.state_dict(), MAMBA_NAMES)), theirs


@pytest.fixture
def jamba(randomise, preset, layer, model_of, renamed):
    """`jamba(places)`: (ours, theirs), three layers with attention at these places."""

    def made(attention: dict, schedule: list[int]):
        shape = {"vocab_size": 271, "hidden_size": 20, "intermediate_size": 27, "num_hidden_layers": 3}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 1, "num_experts_per_tok": 1}
        inner = {"mamba_d_state": 7, "mamba_d_conv": 3, "mamba_dt_rank": 3, "rms_norm_eps": 1e-5, "pad_token_id": 0}
        theirs = randomise(JambaForCausalLM(JambaConfig(**shape, **heads, **inner, **attention)))
        ssm = {"type": "mamba", "mamba": SSM | {"inner_norm": True}}
        tree = preset(layer(ssm), layer(), schedule=schedule, embedding={"positional": "none"}, **SIZES)
        if 1 not in schedule:
            del tree["layer_templates"]["t1"]
        return model_of(tree, theirs, renamed(theirs.state_dict(), JAMBA_NAMES)), theirs

    return made


@pytest.fixture
def pair(request, mamba, jamba):
    """mamba, or jamba with attention in the middle."""
    return mamba if request.param == "mamba" else jamba({"attn_layer_period": 3, "attn_layer_offset": 1}, [0, 1, 0])


BOTH = pytest.mark.parametrize("pair", ["mamba", "jamba"], indirect=True)


def tokens():
    return torch.randint(2, 271, (1, 21), generator=torch.Generator().manual_seed(5))


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).abs().max() / b.std()).item()


@BOTH
def test_the_second_of_two_packed_documents_knows_nothing_of_the_first(pair):
    ids, places = tokens(), torch.cat((torch.arange(8), torch.arange(13)))[None]
    with torch.no_grad():
        (alone, theirs_alone) = (m(ids[:, 8:], use_cache=False).logits for m in pair)
        (packed, theirs_packed) = (m(ids, position_ids=places, use_cache=False).logits[:, 8:] for m in pair)
    assert gap(alone, theirs_alone) < 1e-4
    assert gap(packed, alone) < 1e-4
    assert gap(theirs_packed, theirs_alone) > WRONG


@BOTH
def test_a_prompt_in_two_pieces_is_the_same_prompt(pair):
    ids, out = tokens(), []
    with torch.no_grad():
        whole, theirs_whole = (m(ids, use_cache=False).logits[:, 8:] for m in pair)
        for model in pair:
            first = model(ids[:, :8], use_cache=True)
            past = first["past_key_values"] if "past_key_values" in first else first["cache"]
            out.append(model(ids[:, 8:], cache=past, use_cache=True).logits)
    assert gap(whole, theirs_whole) < 1e-4
    assert gap(out[0], whole) < 1e-4
    assert gap(out[1], theirs_whole) > WRONG


def test_a_hybrid_of_which_no_layer_is_attention_generates(jamba):
    ours, theirs = jamba({"attn_layer_period": 9, "attn_layer_offset": 8}, [0, 0, 0])
    ids = tokens()[:, :5]
    options = {"max_new_tokens": 7, "do_sample": False, "attention_mask": torch.ones_like(ids), "eos_token_id": None}
    with torch.no_grad():
        assert gap(*(m(ids, use_cache=False).logits for m in (ours, theirs))) < 1e-4
    want = theirs.generate(ids, use_cache=False, **options)
    assert ours.generate(ids, use_cache=True, **options).equal(want)
    with pytest.raises(ValueError, match="get_seq_length"):
        theirs.generate(ids, use_cache=True, **options)

"""Where a misplaced key is sent, and what a key of another dialect is called here."""

import pytest

from eulerstack.errors import EulerStackError
from eulerstack.language.load import check
from eulerstack.language.places import places, renamed
from eulerstack.language.schema import Model


def fixes(data: dict) -> dict[str, str]:
    """The advice on every unknown key, without the list of allowed ones."""
    with pytest.raises(EulerStackError) as caught:
        check(data)
    unknown = [p for p in caught.value.problems if p.what == "unknown key"]
    assert all("Allowed: " in p.fix for p in unknown)
    return {p.where.rpartition(".")[2]: p.fix.partition("Allowed: ")[0].strip() for p in unknown}


def test_every_block_is_found_once():
    paths = {place.owner: {p.path[:-1] for p in places() if p.owner is place.owner} for place in places()}
    assert all(len(found) == 1 for found in paths.values())
    assert "layer_templates.<name>.mixer.branched.selector.top_k" in {place.address for place in places()}


COUNTED = "layers are counted by layer_schedule: `- {template: <name>, repeat: <how many>}`."
MODEL = [
    ("num_heads", "here it is called 'n_heads'."),
    ("num_layers", COUNTED),
    ("num_hidden_layers", COUNTED),
    ("n_positions", "here it is called 'max_seq_len'."),
    ("theta", "here it is called 'rope_theta' and belongs inside embedding."),
    ("window", "it belongs inside layer_templates.<name>.mixer.attention."),
    ("window_size", "here it is called 'window' and belongs inside layer_templates.<name>.mixer.attention."),
    ("activation", "it belongs inside layer_templates.<name>.ffn."),
    ("intermediate_size", "here it is called 'd_ff'."),
    ("rope_theta", "it belongs inside embedding."),
    ("head", "it belongs beside model."),
    ("tie_word_embeddings", "it belongs inside embedding, or here it is called 'tie_weights' and belongs inside head."),
    ("bias", ""),
    ("type", "did you mean 'dtype'?"),
    ("model", "it stands inside model already."),
    ("bogus", ""),
    ("vocabsize", "did you mean 'vocab_size'?"),
]


@pytest.mark.parametrize(("key", "fix"), MODEL)
def test_a_key_in_the_model(plain, key, fix):
    plain["model"][key] = 1
    assert fixes(plain) == {key: fix}


MIXERS = [
    ("attention", "window", "it belongs inside attention."),
    ("attention", "sliding_window", "here it is called 'window' and belongs inside attention."),
    ("attention", "d_state", "it belongs to type mamba, inside mamba."),
    ("attention", "attn", "here it is called 'attention'."),
    ("attention", "mamba", "it belongs to type mamba."),
    ("attention", "n_heads", "it belongs inside model."),
    ("attention", "num_key_value_heads", "here it is called 'n_kv_heads' and belongs inside model."),
    ("attention", "norm", "it belongs beside mixer."),
    ("attention", "m_block", "it belongs inside attention.compression."),
    ("mamba", "d_state", "it belongs inside mamba."),
    ("mamba", "head_dim", "it belongs inside mamba."),
    ("mamba", "ssm_state_size", "here it is called 'd_state' and belongs inside mamba."),
    ("mamba", "sliding_window", "here it is called 'window' and belongs to type attention, inside attention."),
    ("none", "chunk_size", "it belongs to type mamba, inside mamba or to type retnet, inside retnet."),
]


@pytest.mark.parametrize(("kind", "key", "fix"), MIXERS)
def test_a_key_beside_the_type_of_a_mixer(plain, kind, key, fix):
    plain["layer_templates"]["block"]["mixer"] = {"type": kind, key: 1}
    assert fixes(plain) == {key: fix}


def test_keys_inside_the_options_of_a_mixer(plain):
    attention = dict.fromkeys(["d_conv", "bias", "kv_lora_rank", "head_dim", "attention"], 1)
    attention["compression"] = {"type": "hca", "m_block": 4, "window": 8}
    plain["layer_templates"]["block"]["mixer"] = {"type": "attention", "attention": attention}
    assert fixes(plain) == {
        "window": "it belongs beside compression.",
        "d_conv": "it belongs to type mamba, inside mamba.",
        "bias": "here it is called 'qkv_bias' or 'o_bias'.",
        "kv_lora_rank": "here it is called 'latent_dim'.",
        "head_dim": "it belongs inside model.",
        "attention": "it stands inside attention already.",
    }


def test_keys_of_a_mixer_in_a_branch(plain):
    branches = {"ffn": {"type": "attention", "window_size": 8}, "b": {"type": "swa", "window_size": 8}}
    plain["layer_templates"]["block"]["mixer"] = {"type": "branched", "branched": {"branches": branches}}
    assert fixes(plain) == {"window_size": "here it is called 'window' and belongs inside attention."}


FFN_KEYS = [
    ({"type": "gated_mlp", "experts": 8}, "it belongs to type moe, inside moe."),
    ({"type": "gated_mlp", "d_ff": 8}, "it belongs inside model."),
    ({"type": "gated_mlp", "hidden_act": "silu"}, "here it is called 'activation'."),
    ({"type": "none", "activation": "relu"}, "it belongs to type gated_mlp or mlp or moe."),
    ({"type": "moe", "moe": {"experts": 8, "top_k": 2, "n_group": 2}}, "here it is called 'groups' and belongs inside"),
    ({"type": "moe", "moe": {"experts": 8, "top_k": 2, "ffn_dim": 2}}, "here it is called 'd_ff'."),
    ({"type": "moe", "moe": {"experts": 8, "top_k": 2, "bias": True}}, "it belongs beside moe."),
    ({"type": "moe", "moe": {"experts": 8, "top_k": 2, "balance": {"d_ff": 2}}}, "it belongs beside balance."),
]


@pytest.mark.parametrize(("ffn", "fix"), FFN_KEYS)
def test_a_key_of_an_ffn(plain, ffn, fix):
    plain["layer_templates"]["block"]["ffn"] = ffn
    (found,) = fixes(plain).values()
    assert found.startswith(fix)


def test_keys_of_other_blocks(plain):
    plain["embedding"]["tie_weights"] = True
    plain["head"]["tie_word_embeddings"] = True
    plain["layer_schedule"] = [{"template": "block", "n_layers": 2, "override": {"window": 8}}]
    plain["layer_schedule"] += [{"template": "block", "override": {"attention": {"sliding_window": 8}}}]
    plain["layer_templates"]["block"] |= {"attn": {}, "attention": {}, "bias": True}
    assert fixes(plain) == {
        "tie_weights": "did you mean 'tie_word_embeddings'? it belongs inside head.",
        "tie_word_embeddings": "here it is called 'tie_weights'.",
        "n_layers": "here it is called 'repeat'.",
        "window": "it belongs inside attention.",
        "sliding_window": "here it is called 'window'.",
        "attn": "here it is called 'mixer'.",
        "attention": "it belongs inside mixer.",
        "bias": "it belongs inside ffn or inside norm.",
    }


def test_keys_at_the_top(plain):
    plain |= {"d_model": 8, "hidden_size": 8, "layers": [], "lr": 1e-3}
    assert fixes(plain) == {
        "d_model": "it belongs inside model.",
        "hidden_size": "here it is called 'd_model' and belongs inside model.",
        "layers": "which layers there are, in order, is layer_schedule.",
        "lr": "here it is called 'lr_peak' and belongs inside training_hints.",
    }


def test_a_required_key_under_another_name_is_not_missing_too(plain):
    plain["model"]["hidden_size"] = plain["model"].pop("d_model")
    del plain["model"]["n_heads"]
    with pytest.raises(EulerStackError) as caught:
        check(plain)
    assert [(p.where, p.what) for p in caught.value.problems] == [
        ("model.n_heads", "required key is missing"),
        ("model.hidden_size", "unknown key"),
    ]


def test_renamed():
    assert renamed(Model, "d_model", ["x", "n_embd"])
    assert not renamed(Model, "d_model", ["n_head"])
    assert not renamed(None, "d_model", ["n_embd"])

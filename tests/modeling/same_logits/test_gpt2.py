"""GPT-2, written as a preset, against transformers' own class with the same weights."""

from transformers import GPT2Config, GPT2LMHeadModel

NAMES = {
    "transformer.wte": "model.embed_tokens",
    "transformer.wpe": "model.embed_positions",
    "transformer.ln_f": "model.norm",
    "transformer.h": "model.layers",
    "ln_1": "mixer_norm",
    "ln_2": "ffn_norm",
    "attn.c_proj": "mixer.o_proj",
    "mlp.c_fc": "ffn.up_proj",
    "mlp.c_proj": "ffn.down_proj",
}


def ours_of(renamed, state: dict) -> dict:
    """GPT-2's names, its matrices turned, its joint projection split -> ours."""
    turned = {n: v.T if n.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else v for n, v in state.items()}
    out = {}
    for name, value in renamed(turned, NAMES).items():
        if "attn.c_attn" in name:
            for letter, piece in zip("qkv", value.chunk(3), strict=True):
                out[name.replace("attn.c_attn", f"mixer.{letter}_proj")] = piece
        else:
            out[name] = value
    return out


def test_gpt2(randomise, preset, layer, model_of, renamed, agree):
    shape = {"vocab_size": 271, "n_embd": 33, "n_layer": 2, "n_head": 3, "n_inner": 50, "n_positions": 48}
    theirs = randomise(GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=1)))
    mlp = {"type": "mlp", "bias": True, "activation": "gelu_tanh"}
    block = layer({"qkv_bias": True, "o_bias": True}, mlp, norm={"type": "layernorm"})
    sizes = {"d_model": 33, "d_ff": 50, "n_heads": 3, "max_seq_len": 48}
    tree = preset(block, schedule=[0, 0], embedding={"positional": "learned"}, head={"tie_weights": True}, **sizes)
    agree(model_of(tree, theirs, ours_of(renamed, theirs.state_dict())), theirs)

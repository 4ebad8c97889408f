"""Models of transformers with weights of some size, presets that say the same, and what makes two of them agree."""

import copy

import pytest
import torch

from eulerstack.compiler.runtime import runtime_config
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir

VOCAB = 271


def preset(*templates: dict, schedule=None, embedding=None, head=None, **model) -> dict:
    """The dict of a preset: template i is named "t<i>" and scheduled once, unless `schedule` lists numbers."""
    named = {f"t{i}": copy.deepcopy(template) for i, template in enumerate(templates)}
    order = range(len(templates)) if schedule is None else schedule
    return {
        "schema_version": 1,
        "model": {"name": "same", "vocab_size": VOCAB, "max_seq_len": 64, "dtype": "float32"} | model,
        "tokenizer_contract": {"type": "byte_bpe"},
        "embedding": {"type": "learned", "positional": "rope"} | (embedding or {}),
        "layer_templates": named,
        "layer_schedule": [{"template": f"t{i}"} for i in order],
        "head": {"type": "causal_lm", "tie_weights": False} | (head or {}),
    }


def layer(mixer: dict | None = None, ffn: dict | None = None, **rest) -> dict:
    """A layer template; `mixer` are options of attention unless it names a type."""
    mixer = mixer or {}
    mixer = mixer if "type" in mixer else {"type": "attention", "attention": mixer}
    return {"mixer": mixer, "ffn": ffn or {"type": "gated_mlp"}, **rest}


def randomise(model):
    """Weights of some size, norms around one, in evaluation mode; experts one after the other, for their odd sizes."""
    model.config._experts_implementation = "eager"
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.15 + (1.0 if p.dim() == 1 else 0.0))
    return model.eval()


def renamed(state: dict, pairs: dict[str, str]) -> dict:
    """`state` with each key of `pairs` replaced by its value in every name, one after the other."""
    for theirs, ours in pairs.items():
        state = {name.replace(theirs, ours): value for name, value in state.items()}
    return state


def agree(ours, theirs, bound: float = 1e-4) -> None:
    """The same logits of whole texts, and of texts read in two pieces and then token by token on each one's cache."""
    ids = torch.randint(0, VOCAB, (3, 41), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        whole, want = (m(ids, use_cache=False).logits for m in (ours, theirs))
        assert (whole - want).abs().max() < bound * want.std()
        out, past, at = [], None, 0
        for n in (17, 9, *[1] * 15):
            step = ours(ids[:, at : at + n], past_key_values=past, use_cache=True)
            past, at = step.past_key_values, at + n
            out.append(step.logits)
    assert (torch.cat(out, 1) - want).abs().max() < bound * want.std()


@pytest.fixture
def model_of(build):
    """`model_of(tree, theirs, state)`: the model of a preset with a mapped state dict; it has as many parameters."""

    def made(tree: dict, theirs, state: dict):
        ir = normalize_to_ir(tree)
        ours = build(runtime_config(ir))
        assert (
            costs(ir).total == sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
        )
        ours.load_state_dict(state)
        return ours

    return made


def given(function):
    """The fixture that is the function itself, under its name."""
    return pytest.fixture(name=function.__name__, scope="session")(lambda: function)


_preset, _layer, _randomise, _renamed, _agree = map(given, (preset, layer, randomise, renamed, agree))

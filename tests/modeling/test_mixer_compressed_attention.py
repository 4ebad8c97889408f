"""Compressed attention against its definition: one query after the other, one key after the other, in float64."""

import json
from pathlib import Path
from runpy import run_path

import pytest
import torch

from eulerstack.modeling import mixer_compressed_attention
from eulerstack.modeling.configuration_eulerstack import EulerStackConfig
from eulerstack.modeling.context import Context
from eulerstack.modeling.mixer_compressed_attention import Mixer
from eulerstack.modeling.op_context import build_context

Naive = run_path(str(Path(__file__).with_name("naive_compressed.py")))["Naive"]
BASE = json.loads((Path(__file__).parent / "options" / "mixer_compressed_attention.json").read_text())
NO_INDEX = dict.fromkeys(("top_k_blocks", "index_arch", "index_heads", "index_dim", "index_dtype"))
D, T = 11, 23
CASES = {
    "csa": {},
    "csa max dot": {"pool": "max", "index_arch": "dot_product", "index_dtype": "fp4", "top_k_blocks": 1},
    "csa block softmax": {"index_arch": "learned_block_sel", "pool": "mean", "index_dtype": "bf16", "window": 2},
    "csa capped": {"logit_softcap": 2.0, "qk_norm": "rmsnorm_full", "m_block": 1, "index_dtype": "fp32"},
    "csa narrow": {"m_block": 5, "window": None, "attention_sinks": None, "pool": "learned_pool"},
    "hca": {"compression": "hca"} | NO_INDEX,
    "hca wide": {"compression": "hca", "window": 9, "pool": "max", "qk_norm": "none"} | NO_INDEX,
    "nsa": {"compression": "nsa_learned"},
    "nsa block softmax": {"compression": "nsa_learned", "index_arch": "learned_block_sel", "attention_sinks": None},
    "nsa narrow": {"compression": "nsa_learned", "window": None, "m_block": 4, "index_arch": "dot_product"},
}


def options_of(case: str) -> dict:
    return BASE | CASES[case]


def config(positional: str = "rope", attention: str = "eager") -> EulerStackConfig:
    rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}
    made = EulerStackConfig(hidden_size=D, positional=positional, rope_parameters=rope, rms_norm_eps=1e-5)
    made._attn_implementation = attention
    return made


def mixer_of(options: dict, positional: str = "rope", attention: str = "eager", dtype=torch.float64) -> Mixer:
    made = Mixer(config(positional, attention), 0, **options).to(dtype)
    generator = torch.Generator().manual_seed(5)
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype) * 0.5
    return made.eval()


def inputs(rows: int = 1, length: int = T) -> torch.Tensor:
    return torch.randn(rows, length, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def context(length: int = T, **named) -> Context:
    places = torch.arange(length)[None]
    return Context(positions=places, key_positions=places, **named)


def close(a, b, bound=1e-9):
    assert (a - b).abs().max().item() < bound * max(1.0, b.abs().max().item())


@pytest.mark.parametrize("positional", ["rope", "alibi", "none"])
@pytest.mark.parametrize("case", CASES)
def test_definition_and_its_gradients(case, positional):
    options = options_of(case)
    x = inputs().requires_grad_()
    got = {}
    for name in ("mixer", "definition"):
        mixer = mixer_of(options, positional)
        y = mixer(x, context())[0][0] if name == "mixer" else Naive(mixer, options, positional)(x[0])
        grads = torch.autograd.grad(y.sin().sum(), [x, *mixer.parameters()])
        got[name] = (y, *grads)
    for a, b in zip(got["mixer"], got["definition"], strict=True):
        close(a, b)


@pytest.mark.parametrize("run", [1, 4, 22])
@pytest.mark.parametrize("rows", ["plain", "padded", "packed"])
@pytest.mark.parametrize("case", CASES)
def test_runs_of_queries_change_nothing(case, rows, run, monkeypatch):
    mixer, x = mixer_of(options_of(case)), inputs(2)
    keep = torch.ones(2, T, dtype=torch.bool)
    places = torch.arange(T).expand(2, -1)
    if rows == "padded":
        keep[0, :4] = keep[1, 2:5] = keep[1, 19:] = False
        places = (keep.long().cumsum(1) - 1).clamp(min=0)
    elif rows == "packed":
        places = torch.cat((torch.arange(9), torch.arange(T - 9))).expand(2, -1)
    named = {"past": None, "use_cache": False, "input_ids": None, "extra": {}}
    whole = build_context(x, attention_mask=keep, position_ids=places, **named)
    with torch.no_grad():
        want = mixer(x, whole)[0]
        monkeypatch.setattr(mixer_compressed_attention, "RUN", run)
        whole.memo.clear()
        got = mixer(x, whole)[0]
    close(got[keep], want[keep])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_agree(case, attention):
    options, x = options_of(case), inputs(2)
    with torch.no_grad():
        close(mixer_of(options, attention=attention)(x, context())[0], mixer_of(options)(x, context())[0])


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_every_parameter_learns_however_short_the_text(case, length):
    mixer = mixer_of(options_of(case)).train()
    mixer(inputs(2, length), context(length))[0].sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in mixer.parameters())


@pytest.mark.parametrize("case", ["csa", "csa max dot", "csa block softmax", "nsa", "nsa narrow"])
def test_every_parameter_of_the_indexer_moves(case):
    mixer = mixer_of(options_of(case)).train()
    mixer(inputs(), context())[0].sin().sum().backward()
    still = [name for name, p in mixer.indexer.named_parameters() if not p.grad.abs().sum() > 0]
    assert not still


def test_what_the_indexer_learns_changes_no_value():
    mixer, x = mixer_of(options_of("csa")), inputs(2)
    with torch.no_grad():
        blind = mixer(x, context())[0]
    close(mixer.train()(x, context())[0], blind, 1e-12)


def test_all_blocks_chosen_is_dense():
    """csa that may keep every block is hca."""
    x, options = inputs(2), options_of("csa")
    sparse = mixer_of(options | {"top_k_blocks": T})
    dense = Mixer(config(), 0, **options | {"compression": "hca"} | NO_INDEX).double().eval()
    dense.load_state_dict({n: p for n, p in sparse.state_dict().items() if not n.startswith("indexer")})
    with torch.no_grad():
        close(sparse(x, context())[0], dense(x, context())[0])
        assert (mixer_of(options)(x, context())[0] - dense(x, context())[0]).abs().max() > 1e-3


def test_a_window_over_everything_sees_what_plain_attention_sees():
    """With a block longer than the text there is no entry, and the text is one block."""
    from eulerstack.modeling.mixer_attention import Mixer as Plain

    options, x = options_of("hca") | {"m_block": T + 1}, inputs(2)
    mixer = mixer_of(options)
    names = ("n_heads", "n_kv_heads", "head_dim", "qkv_bias", "o_bias", "attn_drop", "window_mode", "window_dilation")
    names += ("qk_norm", "logit_softcap", "scale", "attention_sinks")
    plain = Plain(config(), 0, window=None, **{name: options[name] for name in names}).double().eval()
    plain.load_state_dict({n: p for n, p in mixer.state_dict().items() if not n.startswith(("pool", "entry"))})
    with torch.no_grad():
        close(mixer(x, context())[0], plain(x, context())[0])


@pytest.mark.parametrize("positional", ["rope", "alibi"])
@pytest.mark.parametrize("case", CASES)
def test_mixed_precision_trains(case, positional):
    mixer = mixer_of(options_of(case), positional, "sdpa", torch.float32).train()
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = mixer(inputs(2).float(), context())
    y.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in mixer.parameters())


def test_dropout_is_for_training_only():
    mixer, x = mixer_of(options_of("csa") | {"attn_drop": 0.5}), inputs()
    with torch.no_grad():
        assert torch.equal(mixer(x, context())[0], mixer(x, context())[0])
        assert not torch.equal(mixer.train()(x, context())[0], mixer(x, context())[0])


@pytest.mark.parametrize("case", ["csa", "hca wide", "nsa"])
def test_the_state_holds_what_is_needed_and_no_more(case):
    """Keys of the window, the open block, and entries: nothing else grows with the text."""
    options = options_of(case)
    mixer = mixer_of(options)
    with torch.no_grad():
        state = mixer(inputs(), context(use_cache=True))[1]
    m, reach = options["m_block"], max(options["m_block"], options["window"] or 0) - 1
    long = {name: t.shape[1] for name, t in state.items()}
    kept = {"keys": reach, "values": reach, "entry_keys": T // m, "entry_values": T // m}
    kept |= {name: m - 1 for name in long if name in ("pool_k", "pool_v", "pool_gate", "index_k", "index_gate")}
    if options["index_arch"]:
        kept["index_entries"] = T // m
    if options["compression"] == "nsa_learned":
        kept |= {"all_keys": T, "all_values": T}
    assert long == kept


def test_an_unknown_compression_is_refused():
    with pytest.raises(ValueError, match="dsa"):
        Mixer(config(), 0, **BASE | {"compression": "dsa"})

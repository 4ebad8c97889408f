"""The laws every mixer and feed-forward file obeys, found by file name; float64, odd sizes."""

import copy
import inspect
from pathlib import Path
from runpy import run_path

import pytest
import torch

import eulerstack.modeling
from eulerstack.modeling.initial import Init, rules_of

CALLS = run_path(str(Path(__file__).parents[1] / "calls.py"))
logits, in_chunks, checkpoint_layers = (CALLS[name] for name in ("logits", "in_chunks", "checkpoint_layers"))
FOLDER = Path(eulerstack.modeling.__path__[0])
VARIANTS = {path.stem for path in (Path(__file__).parent / "options").glob("mixer_*.*.json")}
MIXERS = sorted({path.stem for path in FOLDER.glob("mixer_*.py")} | VARIANTS)
FFNS = sorted(path.stem for path in FOLDER.glob("ffn_*.py"))
T = 23
EXACT = 1e-9


@pytest.fixture(params=MIXERS)
def mixer(request):
    return request.param.removeprefix("mixer_")


@pytest.fixture(params=FFNS)
def ffn(request):
    return request.param.removeprefix("ffn_")


@pytest.fixture
def model(mixer, build, payload, block):
    """Two layers of the mixer, one of them with a parallel residual."""
    return build(payload(block(mixer), block(mixer, "mlp", residual={"type": "parallel"})), torch.float64)


@pytest.fixture
def ids():
    return torch.randint(2, 67, (3, T), generator=torch.Generator().manual_seed(1))


def close(a, b, bound=EXACT):
    gap = (a - b).abs().max().item() / b.std().item()
    assert gap < bound, f"{gap:.1e} standard deviations apart"


def test_files_are_found():
    assert {"mixer_attention", "mixer_latent_attention"} <= set(MIXERS)
    assert {"ffn_mlp", "ffn_gated_mlp"} <= set(FFNS)


@pytest.mark.parametrize("name", MIXERS + FFNS)
def test_options_are_keyword_only_without_defaults(name, part, options):
    for base in (c for c in part(name).__mro__ if "__init__" in vars(c) and c.__module__.startswith("eulerstack")):
        parameters = list(inspect.signature(base.__init__).parameters.values())
        assert [p.name for p in parameters[:3]] == ["self", "config", "layer_idx"]
        named = [p for p in parameters[3:] if p.kind is not p.VAR_KEYWORD]
        assert all(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in named)
        assert {p.name for p in named} <= set(options(name))


@pytest.mark.parametrize("name", MIXERS + FFNS)
def test_unknown_option_is_refused(name, made, build, payload, block):
    config = build(payload(block())).config
    made(name, config)
    with pytest.raises(TypeError, match="windw"):
        made(name, config, windw=3)


def test_causal(model, ids):
    full, other = logits(model, ids), ids.clone()
    other[:, 11:] = (ids[:, 11:] - 2 + 7) % 65 + 2
    changed = logits(model, other)
    close(changed[:, :11], full[:, :11])
    assert (changed[:, 11:] - full[:, 11:]).abs().max() > 0.1


def test_earlier_tokens_matter(model, ids):
    other = ids.clone()
    other[:, 0] = (ids[:, 0] - 2 + 7) % 65 + 2
    assert (logits(model, ids) - logits(model, other))[:, 1:].abs().amax((0, 2)).min() > 0


def test_rows_are_independent(model, ids):
    close(logits(model, ids[1:2]), logits(model, ids)[1:2])


@pytest.mark.parametrize("lengths", [(1,) * T, (9, 1, 7, 6), (1, 22), (T,)])
def test_chunks_continue_exactly(model, ids, lengths):
    close(in_chunks(model, ids, lengths)[0], logits(model, ids))


def test_state_is_pure_and_batch_first(model, ids):
    _, past = in_chunks(model, ids, (9, 3))
    before, kept = copy.deepcopy(past.states), past.states
    model(input_ids=ids[:, 12:17], cache=past, use_cache=True)
    for old, now, after in zip(kept, before, past.states, strict=True):
        assert set(old) == set(after)
        for name, tensor in old.items():
            assert torch.equal(tensor, now[name])
            assert tensor.shape[0] == len(ids)


def test_no_state_without_cache(model, ids):
    seen = []
    for layer in model.model.layers:
        layer.mixer.register_forward_hook(lambda module, args, out: seen.append(out[1]))
    logits(model, ids)
    assert seen == [None, None]


def test_left_padding(model, ids):
    pad = 5
    padded = torch.cat((torch.full((3, pad), 7), ids), 1)
    mask = torch.ones_like(padded)
    mask[:, :pad] = 0
    close(logits(model, padded, attention_mask=mask)[:, pad:], logits(model, ids))


def test_uneven_padding_on_both_sides_then_decoding(model, ids):
    """Rows with pads of other lengths before and after; then each goes on as if alone."""
    spans, width = ((3, 14), (0, 9), (6, 17)), 17
    batch, mask = torch.full((3, width), 7), torch.zeros(3, width, dtype=torch.long)
    for row, (a, b) in enumerate(spans):
        batch[row, a:b], mask[row, a:b] = ids[row, : b - a], 1
    with torch.no_grad():
        first = model(input_ids=batch, attention_mask=mask, use_cache=True)
        more = torch.cat((mask, torch.ones(3, 4, dtype=torch.long)), 1)
        then = torch.stack([ids[row, b - a : b - a + 4] for row, (a, b) in enumerate(spans)])
        second = model(input_ids=then, attention_mask=more, cache=first.past_key_values, use_cache=True)
    for row, (a, b) in enumerate(spans):
        alone = logits(model, ids[row : row + 1])
        close(first.logits[row, a:b], alone[0, : b - a])
        close(second.logits[row], alone[0, b - a : b - a + 4])


def packed(cuts):
    return torch.cat([torch.arange(b - a) for a, b in zip((0, *cuts), (*cuts, T), strict=True)])[None]


@pytest.mark.parametrize("way", ["position_ids", "seq_idx", "cu_seq_lens_q"])
@pytest.mark.parametrize("cuts", [(11,), (1, 2, 16)])
def test_packed_documents_do_not_leak(model, ids, way, cuts):
    bounds = list(zip((0, *cuts), (*cuts, T), strict=True))
    given = {
        "position_ids": packed(cuts),
        "seq_idx": torch.cat([torch.full((b - a,), i) for i, (a, b) in enumerate(bounds)])[None].int(),
        "cu_seq_lens_q": torch.tensor([0, *cuts, T], dtype=torch.int32),
    }[way]
    want = torch.cat([logits(model, ids[:1, a:b]) for a, b in bounds], 1)
    close(logits(model, ids[:1], **{way: given}), want)


@pytest.mark.parametrize("lengths", [(1,) * T, (8, 3, 7, 5)])
def test_packed_documents_in_chunks(model, ids, lengths):
    cuts = (4, 11)
    want = torch.cat([logits(model, ids[:1, a:b]) for a, b in ((0, 4), (4, 11), (11, T))], 1)
    close(in_chunks(model, ids[:1], lengths, position_ids=packed(cuts))[0], want)


def test_every_parameter_has_a_rule_and_learns(model, ids):
    init = Init("normal", 0.2, 2)
    for module in model.modules():
        rules = rules_of(module, init)
        assert {name for name, _ in module.named_parameters(recurse=False)} <= set(rules)
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    bad = [n for n, p in model.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert not bad


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_no_gradient(model, ids, reentrant):
    other = checkpoint_layers(copy.deepcopy(model), reentrant)
    for m in (model, other):
        m.train()(input_ids=ids, labels=ids).loss.backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_half_precision_is_uniform_and_finite(mixer, build, payload, block, ids):
    model = build(payload(block(mixer)), torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    out, _ = in_chunks(model, ids, (9, 1, 13))
    assert out.dtype == torch.bfloat16
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("lengths", [(1,) * T, (6, 17)])
def test_one_layer_alone_generates_the_same_with_and_without_cache(mixer, build, payload, block, ids, lengths):
    model = build(payload(block(mixer, "none")), torch.float64)
    named = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones(2, 5), "pad_token_id": 0}
    with_cache, without = (model.generate(ids[:2, :5], use_cache=u, **named) for u in (True, False))
    assert torch.equal(with_cache, without)
    close(in_chunks(model, ids, lengths)[0], logits(model, ids))


def test_feed_forward_sees_one_token_at_a_time(ffn, build, payload, block, ids):
    model = build(payload(block("none", ffn)), torch.float64)
    full = logits(model, ids)
    close(logits(model, ids[:, 5:6]), full[:, 5:6])
    close(logits(model, ids.flip(1)), full.flip(1))


@pytest.mark.parametrize("reentrant", [True, False])
def test_feed_forward_gradients(ffn, build, payload, block, ids, reentrant):
    model = build(payload(block("attention", ffn), block("attention", ffn)), torch.float64)
    other = checkpoint_layers(copy.deepcopy(model), reentrant)
    for m in (model, other):
        m.train()(input_ids=ids, labels=ids).loss.backward()
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name
        assert torch.equal(p.grad, q.grad), name

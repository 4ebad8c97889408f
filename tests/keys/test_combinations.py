"""Everything that validates runs: presets drawn from the whole language, built, trained and decoded.

`HYPOTHESIS_PROFILE=long` draws many more, and other ones each time.
"""

import copy
import os
from pathlib import Path
from runpy import run_path

import torch
from hypothesis import HealthCheck, given, reject, settings

from eulerstack.compiler.runtime import runtime_config
from eulerstack.errors import EulerStackError
from eulerstack.export.build import build, build_on_meta, plan
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.ir.shrink import shrink
from eulerstack.ir.tensors import buffers, parameters
from eulerstack.modeling.recipe import generate

CALLS = run_path(str(Path(__file__).parents[1] / "calls.py"))
logits, in_chunks, checkpoint_layers = (CALLS[name] for name in ("logits", "in_chunks", "checkpoint_layers"))
PRESETS = run_path(str(Path(__file__).with_name("strategies.py")))["presets"]
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
SETTINGS = settings(
    max_examples=2000 if LONG else 18,
    derandomize=not LONG,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
T = 19
IDS = torch.randint(0, 270, (2, T), generator=torch.Generator().manual_seed(1))
LENGTHS = (11, 6, 1)  # of documents packed in a row
PACKED = torch.cat((IDS[:1, :11], IDS[1:, :6], IDS[:1, 12:13]), 1)
PLACES = torch.cat([torch.arange(n) for n in LENGTHS])[None]


def close(a, b, bound=1e-8):
    gap = ((a - b).abs().max() / (b.abs().max() + 1e-6)).item()
    assert gap < bound, f"{gap:.1e} of the largest apart"


def made(ir):
    """The model in float64, nothing in it at a special value such as zero."""
    torch.manual_seed(0)
    model = build(runtime_config(ir), torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def stored(ir) -> dict:
    return {tensor.name: tensor.shape for tensor in plan(build_on_meta(runtime_config(ir)))}


def valid(tree):
    """The IR of a preset; what the language refuses is not counted as an example."""
    try:
        return normalize_to_ir(tree)
    except EulerStackError:
        reject()


def layers_of(ir) -> tuple:
    return (*ir.layers, *([ir.mtp_layer] if ir.mtp_layer else []))


def remembers_across_calls(ir) -> bool:
    """Whether a memory outlives a document that ends with a call."""
    memories = (layer.memory for layer in ir.layers if layer.memory)
    return any(memory.update_at_inference and memory.persistence != "per_query" for memory in memories)


def tokens_share(ir) -> bool:
    """Whether in training a token's result depends on others of the batch, or on chance."""
    experts = [layer.ffn.moe for layer in layers_of(ir) if layer.ffn.type == "moe"]
    return any(moe.router_jitter or moe.capacity_drop_policy != "overflow" for moe in experts)


def what_is_predicted_is_built(ir):
    for each in (ir, shrink(ir)):
        assert parameters(each) | buffers(each) == stored(each)
    with torch.no_grad():
        out = build(runtime_config(ir)).eval()(input_ids=IDS[:1], use_cache=True)
    held = sum(t.nbytes for state in out.past_key_values.states if state for t in state.values())
    assert costs(ir, T).kv_cache_bytes + costs(ir, T).state_bytes == held


def trained(model, ids=IDS):
    model = copy.deepcopy(model).train()
    torch.manual_seed(2)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    assert loss.isfinite()
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    return model


def checkpointing_changes_nothing(model):
    other = checkpoint_layers(copy.deepcopy(model), reentrant=False)
    for p, q in zip(trained(other).parameters(), trained(model).parameters(), strict=True):
        close(p.grad, q.grad)


def tokens_come_alone(model):
    """Rows, padding and packing change nothing; returns what packed documents must give."""
    whole, alone = logits(model, IDS), logits(model, IDS[:1, :11])
    assert whole.isfinite().all()
    close(logits(model, IDS[1:]), whole[1:])
    padded = torch.cat((IDS.new_full((1, 4), 3), IDS[:1, :11], IDS.new_full((1, 2), 3)), 1)
    mask = torch.tensor([[0] * 4 + [1] * 11 + [0] * 2])
    close(logits(model, padded, attention_mask=mask)[:, 4:15], alone)
    apart = torch.cat((alone, logits(model, IDS[1:, :6]), logits(model, IDS[:1, 12:13])), 1)
    close(logits(model, PACKED, position_ids=PLACES), apart)
    return apart


def the_past_is_all(model, across_calls):
    """Causal, and exact on the cache, packed and uneven too."""
    whole, other = logits(model, IDS), IDS.clone()
    other[:, 9:] = (IDS[:, 9:] + 7) % 270
    close(logits(model, other)[:, :9], whole[:, :9])
    for lengths in ((1,) * T, (7, 1, 5, 6)):
        close(in_chunks(model, IDS, lengths)[0], whole)
    apart = tokens_come_alone(model)
    for lengths in ((13, 2, 3),) if across_calls else ((5, 4, 7, 2), LENGTHS):
        close(in_chunks(model, PACKED, lengths, position_ids=PLACES)[0], apart)
    _uneven_rows_go_on(model, whole)


def _uneven_rows_go_on(model, whole):
    """Rows of other lengths, padded on either side, each continued where it ended."""
    spans = ((3, 14), (0, 9))
    batch, mask = torch.full((2, 16), 7), torch.zeros(2, 16, dtype=torch.long)
    for row, (a, b) in enumerate(spans):
        batch[row, a:b], mask[row, a:b] = IDS[row, : b - a], 1
    then = torch.stack([IDS[row, b - a : b - a + 4] for row, (a, b) in enumerate(spans)])
    with torch.no_grad():
        past = model(input_ids=batch, attention_mask=mask, use_cache=True).past_key_values
        mask = torch.cat((mask, torch.ones_like(then)), 1)
        after = model(input_ids=then, attention_mask=mask, cache=past, use_cache=True).logits
    for row, (a, b) in enumerate(spans):
        close(after[row], whole[row, b - a : b - a + 4])


def training_sees_each_document_alone(model):
    model = copy.deepcopy(model).train()
    tokens_come_alone(model)
    row, mask = IDS[:1, :11], torch.tensor([[0] * 3 + [1] * 11 + [0] * 2])
    padded = torch.cat((row.new_full((1, 3), 5), row, row.new_full((1, 2), 5)), 1)
    labels = padded.masked_fill(mask == 0, -100)
    labels[:, 3] = -100  # what padding predicts
    with torch.no_grad():
        loss = model(input_ids=padded, attention_mask=mask, labels=labels).loss
        close(loss, model(input_ids=row, labels=row).loss, 1e-5)  # transformers' own loss is float32


def it_generates(model):
    named = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    prompt = {"inputs": IDS[:, :5], "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    cached, plain = (model.generate(use_cache=use, **prompt, **named) for use in (True, False))
    assert torch.equal(cached, plain)
    if model.config.mtp:
        assert torch.equal(cached, generate(model, **prompt, **named))


def half_precision_runs(ir):
    model = build(runtime_config(ir), torch.bfloat16)
    trained(model)
    assert in_chunks(model.eval(), IDS, (7, 1, 11))[0].isfinite().all()


@SETTINGS
@given(PRESETS())
def test_what_validates_runs(tree):
    ir = valid(tree)
    what_is_predicted_is_built(ir)
    model = made(ir)
    checkpointing_changes_nothing(model)
    the_past_is_all(model, remembers_across_calls(ir))
    if not tokens_share(ir):
        training_sees_each_document_alone(model)
    it_generates(model)
    half_precision_runs(ir)


@settings(SETTINGS, max_examples=100 if LONG else 3)
@given(tree=PRESETS())
def test_what_is_saved_is_read(tree, tmp_path_factory):
    model, folder = made(valid(tree)), tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    again = type(model).from_pretrained(folder, dtype=torch.float64).eval()
    assert torch.equal(logits(again, IDS), logits(model, IDS))

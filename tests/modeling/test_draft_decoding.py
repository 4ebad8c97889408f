"""Decoding with drafts: the tokens of plain decoding, in fewer passes where the heads know something."""

import functools

import pytest
import torch
import yaml
from transformers.generation.streamers import BaseStreamer

from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.build import build as build_payload
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.ir.shrink import shrink
from eulerstack.modeling.draft_decoding import CATCH_UP, Drafter
from eulerstack.modeling.recipe import generate

FAMILIES = {
    "attention": [("attention", {})],
    "window": [("attention", {"window": 4})],
    "mamba1": [("mamba1", {})],
    "mamba2": [("mamba2", {})],
    "hybrid": [("mamba1", {}), ("attention", {})],
}
GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
VOCAB = 67


@pytest.fixture(scope="module")
def counting(payload, block, build):
    """`counting(family, noise)`: a model with three heads that counts on, and so do they: each token names the next,
    but for what their layers add by `noise`, which is enough to be at odds."""

    @functools.cache
    def model(family: str, noise: float = 0.6):
        blocks = [block(mixer, **options, residual={"scaling": noise}) for mixer, options in FAMILIES[family]]
        options = {"n_predict": 3, "head_layers": 1, "kind": "kind0", "train_loss_weight": 1.0}
        changes = {"head_type": "causal_lm_mtp", "mtp": options, "tie_word_embeddings": False}
        made = build(payload(*blocks, **changes), torch.float64)
        d = made.config.hidden_size
        with torch.no_grad():
            table = made.model.embed_tokens.weight.normal_()
            made.lm_head.weight.copy_(table.roll(1, 0))
            for head in made.mtp.heads:
                head.proj.weight.copy_(torch.cat((0.7 * torch.eye(d), torch.eye(d)), 1))
        return made

    return model


@pytest.fixture
def both(counting):
    """`both(family, ids, **how)`: the texts of plain decoding and of decoding with drafts, and the passes of each."""

    def run(family, ids, noise=0.6, **how):
        model, passes = counting(family, noise), []
        hook = model.model.register_forward_hook(lambda *_: passes.append(1))
        try:
            how = GREEDY | {"attention_mask": torch.ones_like(ids)} | how
            plain, first = type(model).generate(model, ids, **how), len(passes)
            drafted = generate(model, ids, **how)
        finally:
            hook.remove()
        return plain, drafted, first, len(passes) - first

    return run


PROMPTS = torch.randint(2, VOCAB, (3, 7), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_passes_and_the_same_text(both, family, rows):
    plain, drafted, passes, fewer = both(family, PROMPTS[:rows], max_new_tokens=29)
    assert torch.equal(plain, drafted)
    assert passes == 29
    assert fewer <= 18


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_text_where_drafts_fail(both, family):
    for rows in (1, 3):
        plain, drafted, passes, fewer = both(family, PROMPTS[:rows], noise=1.8, max_new_tokens=26)
        assert torch.equal(plain, drafted)
        assert 8 < fewer <= passes == 26


def test_what_is_read_again_is_bounded(counting):
    model, lengths = counting("mamba2", 1.8), []
    hook = model.model.register_forward_pre_hook(
        lambda _, __, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    generate(model, PROMPTS[:1], max_new_tokens=60, **GREEDY)
    hook.remove()
    assert len(lengths) > 20
    assert CATCH_UP < max(lengths[1:]) <= CATCH_UP + 4
    assert len(lengths) < 60


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_padded_batch(both, family):
    ids, mask = PROMPTS.clone(), torch.ones_like(PROMPTS)
    for row, pad in enumerate((4, 0, 2)):
        mask[row, :pad] = ids[row, :pad] = 0
    plain, drafted, passes, fewer = both(family, ids, attention_mask=mask, max_new_tokens=21)
    assert torch.equal(plain, drafted)
    assert fewer < passes


PRESETS = ("arch_beginner_llama", "arch_advanced_jamba", "arch_intermediate_mistral", "retnet", "ttt", "hyper", "depth")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_with_heads_that_have_learnt_nothing(catalogue, primitives, name):
    tree = yaml.safe_load((catalogue | primitives)[name].read_text())
    last = tree["layer_schedule"][-1]["template"]
    tree["head"] |= {"type": "causal_lm_mtp", "mtp": {"n_predict": 2, "head_template": last}}
    torch.manual_seed(0)
    model = build_payload(runtime_config(shrink(normalize_to_ir(tree))), torch.float64).eval()
    ids = torch.randint(2, 320, (2, 6), generator=torch.Generator().manual_seed(1))
    how = GREEDY | {"attention_mask": torch.ones_like(ids), "max_new_tokens": 14}
    assert torch.equal(generate(model, ids, **how), type(model).generate(model, ids, **how))


@pytest.mark.parametrize("family", ["attention", "mamba2"])
def test_rows_end_at_different_moments(both, family):
    ends = both(family, PROMPTS, max_new_tokens=20)[0]
    ends = [int(ends[0, 11]), int(ends[1, 16]), int(ends[2, 20])]
    plain, drafted, _, _ = both(family, PROMPTS, eos_token_id=ends, max_new_tokens=20)
    assert torch.equal(plain, drafted)
    assert len({int((row == 0).float().argmax()) for row in drafted[:, 7:]}) > 1


def test_a_prompt_of_one_token_and_every_length(both):
    for new in (1, 2, 3, 7):
        plain, drafted, _, _ = both("attention", PROMPTS[:1, :1], max_new_tokens=new)
        assert torch.equal(plain, drafted)
        assert drafted.shape[1] == 1 + new


@pytest.mark.parametrize("how", [{"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 3}, {"min_new_tokens": 9}])
def test_what_changes_the_choice_of_tokens_changes_it_here(both, how):
    plain, drafted, _, _ = both("attention", PROMPTS[:2], max_new_tokens=17, **how | {"eos_token_id": 60})
    assert torch.equal(plain, drafted)


def test_a_streamer_gets_every_token_once(counting):
    class Heard(BaseStreamer):
        def __init__(self):
            self.tokens, self.ended = [], 0

        def put(self, value):
            self.tokens += value.flatten().tolist()

        def end(self):
            self.ended += 1

    model, heard = counting("attention"), Heard()
    text = generate(model, PROMPTS[:1], streamer=heard, max_new_tokens=12, **GREEDY)
    assert heard.tokens == text[0].tolist()
    assert heard.ended == 1


@torch.no_grad()
def _guesses(model, ids: torch.Tensor, many: int) -> list[int]:
    """What each head says of the text read whole, without any cache, `ids` being the text and the drafts so far."""
    length, guesses = ids.shape[1], []
    for k in range(1, many + 1):
        h = model.model(input_ids=ids[:, : length - 1], use_cache=False).last_hidden_state
        for j in range(1, k + 1):
            tokens = torch.cat((ids, torch.tensor([guesses]).long()), 1)[:, j : length - 1 + j]
            head = model.mtp.heads[j - 1]
            h = head.go_on(h, model.model.embed_tokens(tokens), tokens, torch.ones_like(tokens), head.new_cache())
        guesses.append(int(model._head(h[:, -1:]).argmax()))
    return guesses


@pytest.mark.parametrize("family", ["attention", "mamba1"])
def test_drafts_are_what_the_heads_say(counting, family, monkeypatch):
    model, seen = counting(family, 1.8), []
    propose = Drafter.propose

    def watched(self, many):
        drafts = propose(self, many)
        seen.append((self.text.ids, drafts))
        return drafts

    monkeypatch.setattr(Drafter, "propose", watched)
    ids = torch.randint(0, 67, (1, 5), generator=torch.Generator().manual_seed(8))
    generate(model, ids, max_new_tokens=26, **GREEDY)
    assert len(seen) > 4
    for text, drafts in seen:
        assert drafts[0].tolist() == _guesses(model, text, drafts.shape[1])

"""Generation in phases against a loop that reads the whole text again for each token, one row at a time."""

import pytest
import torch
from transformers.generation.streamers import BaseStreamer

MARK, END = 13, 7
OPTIONS = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "phases": True}


def mode(name, max_tokens, **changes) -> dict:
    known = {"kv_share": True, "loss_weight": 1.0, "visible_to_user": True, "per_token_rationale": False}
    return {"name": name, "max_tokens": max_tokens} | known | changes


SEEN = (mode("think", 7), mode("answer", 6))
HIDDEN = (mode("think", 7, visible_to_user=False), mode("answer", 6))
APART = (mode("plan", 4), mode("think", 7, visible_to_user=False, kv_share=False), mode("answer", 6))
MARKED = {"type": "special_token", "token": "</x>", "token_id": MARK}
BUDGET = {"type": "budget_exhausted", "token": None}


@pytest.fixture
def made(payload, block, build):
    """`made(modes, transition, mixer, boost)`: `boost` adds to the logits of MARK and END, which then occur."""

    def model(modes, transition=None, mixer="attention", boost=0.0):
        changes = {"execution_modes": list(modes), "transition": transition, "head_bias": True}
        config = payload(block(mixer, residual={"scaling": 2.5}), **changes)
        made = build(config, torch.float64)
        with torch.no_grad():
            made.lm_head.bias.zero_()
            made.lm_head.bias[[MARK, END]] = boost
        return made

    return model


@pytest.fixture
def ids():
    return torch.randint(20, 67, (4, 6), generator=torch.Generator().manual_seed(2))


def run(model, ids, **how):
    return model.parts["recipe"](model, ids, **OPTIONS | {"attention_mask": torch.ones_like(ids)} | how)


@torch.no_grad()
def alone(model, prompt: list[int], cap: int = 99, eos: int | None = None) -> tuple[list[int], list[tuple[int, int]]]:
    """The visible text and every (token, phase) of one row, each token chosen by reading all that counts anew."""
    modes, transition = model.config.execution_modes, model.config.transition
    marker = transition["token_id"] if transition and transition["type"] == "special_token" else None
    context, visible, everything = list(prompt), list(prompt), []
    for number, phase in enumerate(modes):
        if number and not modes[number - 1]["kv_share"]:
            context = list(visible)
        for count in range(1, phase["max_tokens"] + 1):
            token = int(model(input_ids=torch.tensor([context]), use_cache=False).logits[0, -1].argmax())
            if marker is not None and count == phase["max_tokens"] and number + 1 < len(modes):
                token = marker
            context.append(token)
            visible += [token] if phase["visible_to_user"] else []
            everything.append((token, number))
            if token == eos or len(everything) == cap:
                return visible, everything
            if token == marker:
                break
    return visible, everything


def check(model, ids, mask=None, eos=None, **how):
    mask = torch.ones_like(ids) if mask is None else mask
    out = run(model, ids, attention_mask=mask, eos_token_id=eos, return_phases=True, **how)
    lengths = []
    for row in range(len(ids)):
        prompt = ids[row][mask[row].bool()].tolist()
        visible, everything = alone(model, prompt, how.get("max_new_tokens", 99), eos)
        new = visible[len(prompt) :]
        assert out.sequences[row, ids.shape[1] :].tolist()[: len(new)] == new
        assert not out.sequences[row, ids.shape[1] + len(new) :].any()
        kept = out.phases[row] >= 0
        got = list(zip(out.all_sequences[row][kept].tolist(), out.phases[row][kept].tolist(), strict=True))
        assert got == everything
        lengths.append(len(everything))
    assert torch.equal(out.sequences[:, : ids.shape[1]], ids)
    return out, lengths


@pytest.mark.parametrize("mixer", ["attention", "mamba1", "mamba2"])
@pytest.mark.parametrize("modes", [SEEN, HIDDEN, APART])
def test_rows_of_a_batch_are_as_alone(made, ids, mixer, modes):
    model = made(modes, MARKED, mixer, boost=1.0)
    out, lengths = check(model, ids, eos=END)
    assert len(set(lengths)) > 1, "no row ends before another: the test shows nothing"
    assert (out.all_sequences == MARK).any()


@pytest.mark.parametrize("modes", [HIDDEN, APART])
def test_prompts_of_different_lengths(made, ids, modes):
    mask = torch.ones_like(ids)
    mask[0, :3] = mask[2, :1] = 0
    check(made(modes, MARKED, boost=1.0), ids.masked_fill(mask == 0, 0), mask, eos=END)


def test_a_spent_budget_gets_the_transition_token(made, ids):
    out, _ = check(made(HIDDEN, MARKED, boost=-50.0), ids)
    assert (out.all_sequences[:, 6:] == MARK).nonzero().tolist() == [[row, 6] for row in range(4)]
    assert out.sequences.shape == (4, 6 + 6)
    assert out.names == ("think", "answer")


@pytest.mark.parametrize("transition", [None, BUDGET])
def test_budgets_alone(made, ids, transition):
    out, lengths = check(made(HIDDEN, transition, boost=-50.0), ids)
    assert lengths == [13] * 4
    assert out.phases[0, 6:].tolist() == [0] * 7 + [1] * 6


def test_where_all_is_seen_and_no_token_ends_a_phase_it_is_plain_decoding(made, ids):
    model = made(SEEN, BUDGET)
    plain = type(model).generate(model, ids, max_new_tokens=13, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert torch.equal(run(model, ids), plain)


@pytest.mark.parametrize("cap", [1, 5, 7, 9])
def test_new_tokens_are_capped_hidden_ones_too(made, ids, cap):
    _, lengths = check(made(HIDDEN, BUDGET), ids, max_new_tokens=cap)
    assert lengths == [cap] * 4


def test_a_cache_that_is_kept_apart_changes_the_answer(made, ids):
    shared = [APART[0], APART[1] | {"kv_share": True}, APART[2]]
    assert not torch.equal(run(made(APART, BUDGET), ids), run(made(shared, BUDGET), ids))


def test_sampling_draws(made, ids):
    model = made(HIDDEN, BUDGET)
    torch.manual_seed(0)
    a, b = (run(model, ids, do_sample=True, top_k=0, temperature=2.0) for _ in range(2))
    assert not torch.equal(a, b)
    nearly_greedy = run(model, ids, do_sample=True, top_k=1)
    assert torch.equal(nearly_greedy, run(model, ids))
    assert run(model, ids[:1], do_sample=True, num_return_sequences=3).shape[0] == 3


def test_a_stopping_criterion_ends_a_row(made, ids):
    model = made(HIDDEN, BUDGET)
    stop = [lambda tokens, _: tokens[:, -1] == second]
    second = run(model, ids[:1])[0, 7]
    out = run(model, ids[:1], stopping_criteria=stop, return_phases=True)
    assert out.all_sequences.shape[1] < 6 + 13
    assert out.all_sequences[0, -1] == second


def test_a_streamer_hears_what_is_seen(made, ids):
    class Heard(BaseStreamer):
        tokens, ended = (), 0

        def put(self, value):
            self.tokens += tuple(value.flatten().tolist())

        def end(self):
            self.ended += 1

    heard, model = Heard(), made(HIDDEN, BUDGET)
    text = run(model, ids[:1], streamer=heard)
    assert heard.tokens == tuple(text[0].tolist())
    assert heard.ended == 1


def test_what_cannot_run_says_so(made, ids):
    model = made(HIDDEN, {"type": "special_token", "token": "</x>"})
    with pytest.raises(ValueError, match="no token_id"):
        run(model, ids)
    with pytest.raises(ValueError, match="num_beams"):
        run(made(HIDDEN), ids, num_beams=2)
    call = OPTIONS | {"attention_mask": torch.ones_like(ids), "inputs_embeds": model.get_input_embeddings()(ids)}
    with pytest.raises(ValueError, match="token ids"):
        model.parts["recipe"](model, **call)

"""The laws that every memory file obeys from token to token and from call to call: causality, padding, documents."""

import copy
from pathlib import Path
from runpy import run_path

import pytest
import torch

from eulerstack.modeling.op_context import build_context

SESSIONS = run_path(str(Path(__file__).with_name("sessions.py")))
PERSISTENCES, B, T, every_persistence, Session, whole, in_calls, close, places, remembered = (
    SESSIONS[name]
    for name in (
        "PERSISTENCES",
        "B",
        "T",
        "every_persistence",
        "Session",
        "whole",
        "in_calls",
        "close",
        "places",
        "remembered",
    )
)


def test_causal(make, x):
    memory, other = make(), x.clone()
    other[:, 20:] += 1.0
    full, changed = whole(memory, x), whole(memory, other)
    close(changed[:, :20], full[:, :20])
    assert (changed[:, 20:] - full[:, 20:]).abs().amax(2).min() > 1e-6


def test_the_first_token_is_not_forgotten_at_once(make, x):
    memory, other = make(), x.clone()
    other[:, 0] += 1.0
    assert (whole(memory, x) - whole(memory, other))[:, 1:6].abs().max() > 1e-6


def test_rows_are_independent(make, x):
    close(whole(make(), x[1:2]), whole(make(), x)[1:2])


@every_persistence
@pytest.mark.parametrize("lengths", [[1] * T, [9, 1, 7, 24], [1, 40], [16, 16, 9], [17, 24]], ids=str)
def test_calls_continue_exactly(make, x, lengths, persistence):
    memory = make(persistence=persistence)
    close(in_calls(memory, x, lengths)[0], whole(memory, x))


def test_state_is_pure_and_batch_first(make, x):
    memory = make()
    session = Session(memory)
    with torch.no_grad():
        session(x[:, :21])
        given, before = session.state, copy.deepcopy(session.state)
        session(x[:, 21:30])
    assert set(given) == set(session.state)
    for key, tensor in given.items():
        assert torch.equal(tensor, before[key])
        assert tensor.shape[0] == B


def test_no_state_without_cache(make, x):
    context = build_context(
        x, past=None, attention_mask=None, position_ids=None, use_cache=False, input_ids=None, extra={}
    )
    for update in (True, False):
        assert make(update_at_inference=update)(x, context, None)[1] is None


@every_persistence
@pytest.mark.parametrize("lengths", [[T], [6, 1, 20, 14], [1] * T], ids=str)
def test_padding_changes_nothing(make, x, lengths, persistence):
    """Left, right, in the middle; in one call and in several, one of which may be all padding."""
    memory, keep = make(persistence=persistence), torch.ones(B, T, dtype=torch.bool)
    keep[0, :8] = keep[1, 30:] = keep[2, 3:6] = keep[2, 21] = False
    got, _ = in_calls(memory, x, lengths, keep=keep)
    for row in range(B):
        alone = whole(memory, x[row : row + 1, keep[row]])
        close(got[row, keep[row]], alone[0])


@every_persistence
@pytest.mark.parametrize("cuts", [(16, 25), (1, 2, 5, 33), (40, 1), (7, 34)], ids=str)
def test_packed_documents_do_not_meet(make, x, cuts, persistence):
    memory = make(persistence=persistence)
    if persistence == "persistent":
        remembered(memory, x.flip(1))
    got = whole(memory, x, places=places(*cuts))
    close(got, torch.cat([whole(memory, part) for part in x.split(cuts, 1)], 1))


@pytest.mark.parametrize("lengths", [[1] * T, [8, 3, 17, 13]], ids=str)
def test_packed_documents_in_calls(make, x, lengths):
    memory = make(persistence="per_query")
    got, _ = in_calls(memory, x, lengths, places=places(4, 18, 19).expand(B, -1))
    close(got, torch.cat([whole(memory, part) for part in x.split((4, 18, 19), 1)], 1))


def test_borders_within_a_call_reset_a_session(make, x):
    """The first document goes on where the call before stopped, the second one starts afresh."""
    memory = make(persistence="session")
    session = Session(memory)
    with torch.no_grad():
        session(x[:, :19], places=torch.arange(19)[None])
        got = session(x[:, 19:], places=places(10, 12))
    close(got[:, :10], whole(memory, x[:, :29])[:, 19:])
    close(got[:, 10:], whole(memory, x[:, 29:]))


def test_a_border_that_begins_a_call_resets_a_query_and_not_a_session(make, x):
    for persistence in PERSISTENCES:
        memory = make(persistence=persistence)
        got, _ = in_calls(memory, x, [19, 22], places=places(19, 22))
        whole_call, apart = whole(memory, x), whole(memory, x[:, 19:])
        close(got[:, 19:], apart if persistence == "per_query" else whole_call[:, 19:])
        assert (whole_call[:, 19:] - apart).abs().max() > 1e-6


def test_padding_before_a_border_that_begins_a_call(make, x):
    memory = make(persistence="session")
    keep = torch.ones(B, T, dtype=torch.bool)
    keep[0, 19:22] = keep[1, :19] = False
    late = torch.cat((torch.arange(19), torch.arange(-3, 19))).clamp(min=0)
    at = torch.stack([late, *places(19, 22), *places(19, 22)])
    got, _ = in_calls(memory, x, [19, 22], keep=keep, places=at)
    for row in range(B):
        close(got[row, keep[row]], whole(memory, x[row : row + 1, keep[row]])[0])

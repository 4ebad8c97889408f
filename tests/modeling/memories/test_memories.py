"""The laws that every memory file obeys: its options, what it remembers and learns, its dtypes and its arithmetic."""

import inspect
from pathlib import Path
from runpy import run_path

import pytest
import torch

from eulerstack.language.block import Dims
from eulerstack.language.memory import Memory as Written
from eulerstack.language.memory import MemoryParams
from eulerstack.modeling.initial import Init, draw, rules_of

SESSIONS = run_path(str(Path(__file__).with_name("sessions.py")))
T, D, P, every_persistence, Session, whole, in_calls, close, remembered = (
    SESSIONS[name]
    for name in ("T", "D", "P", "every_persistence", "Session", "whole", "in_calls", "close", "remembered")
)


def test_files_are_found(memories):
    assert set(memories) >= {"memory_associative", "memory_neural_memory", "memory_retrieval"}


def test_options_are_keyword_only_without_defaults(name, part, options):
    parameters = list(inspect.signature(part(name).__init__).parameters.values())
    assert [p.name for p in parameters[:3]] == ["self", "config", "layer_idx"]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters[3:])
    assert {p.name for p in parameters[3:]} == set(options(name))


def test_unknown_options_and_words_are_refused(make):
    with pytest.raises(TypeError, match="hiden"):
        make(hiden=3)
    with pytest.raises(ValueError, match="unknown persistence 'forever'"):
        make(persistence="forever")


def test_what_was_remembered_is_where_fresh_sequences_start(make, x):
    memory = make(persistence="persistent")
    before = whole(memory, x[:, 20:])
    state = remembered(memory, x[:, :20])
    fresh = whole(memory, x[1:2, 20:])
    assert (fresh - before[1]).abs().max() > 1e-4
    kept = memory.held(state, 1)
    assert all((memory.start(key) - t).abs().max() < 1e-6 for key, t in kept.items() if hasattr(memory, key))
    other = make(persistence="persistent")
    other.load_state_dict(memory.state_dict())
    assert torch.equal(whole(other, x[1:2, 20:]), fresh)
    assert set(dict(memory.named_buffers())) == {f"start_{key}" for key in kept}


def test_only_what_persists_is_remembered(make, x):
    memory = make(persistence="session")
    assert dict(memory.named_buffers()) == {}
    with pytest.raises(ValueError, match="keeps no start"):
        remembered(memory, x)
    with pytest.raises(ValueError, match="has written nothing"):
        remembered(make(persistence="persistent", update_at_inference=False), x)


def test_buffers_stay_wide_and_survive_a_cast(make, x):
    memory = make(persistence="persistent")
    remembered(memory, x)
    kept = {key: t.float() for key, t in memory.named_buffers()}
    half = memory.to(torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    for key, tensor in half.named_buffers():
        assert tensor.dtype == torch.float64 or torch.equal(tensor, kept[key])


@every_persistence
def test_read_only_in_evaluation(make, x, persistence):
    """Every token reads the start and none writes: a token is answered alike wherever it stands."""
    memory = make(update_at_inference=False, persistence=persistence)
    if persistence == "persistent":
        memory.train()
        remembered(memory, x)
        memory.eval()
        assert whole(memory, x).abs().max() > 1e-4
    order = torch.randperm(T, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(whole(memory, x[:, order]), whole(memory, x)[:, order])
    session = Session(memory)
    session(x)
    assert session.state == {}


def test_it_always_learns_in_training(make, x):
    close(whole(make(update_at_inference=False).train(), x), whole(make(update_at_inference=True), x))


@pytest.mark.parametrize("length", [1, T])
@every_persistence
def test_every_parameter_has_a_rule_and_learns(make, x, persistence, length):
    memory = make(update_at_inference=False, persistence=persistence).train()
    rules = rules_of(memory, Init("normal", 0.2, 2))
    own = {*dict(memory.named_parameters(recurse=False)), *dict(memory.named_buffers())}
    assert own == set(rules)
    for key, rule in rules.items():
        draw(getattr(memory, key).data, rule)
    Session(memory)(x[:, :length]).square().sum().backward()
    for key, parameter in memory.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        assert length == 1 or parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes(make, x, dtype):
    got, _ = in_calls(make(dtype), x.to(dtype), [9, 1, 31])
    assert got.dtype == dtype
    assert torch.isfinite(got).all()
    want = whole(make(), x)
    bound = 1e-5 if dtype == torch.float32 else 0.2
    assert (got - want).abs().mean() < bound * want.std()


def test_autocast_leaves_the_recurrence_wide(make, x):
    want = whole(make(torch.float32), x.float())
    with torch.autocast("cpu", torch.bfloat16):
        got = whole(make(torch.float32), x.float())
    assert (got - want).abs().mean() < 0.1 * want.std()


DIMS = Dims(d_model=D, n_heads=3, n_kv_heads=3, head_dim=P, d_ff=9, max_seq_len=64, positional="rope", dtype_bytes=2)


@every_persistence
@pytest.mark.parametrize("update", [True, False])
def test_predicted_tensors_buffers_and_bytes(name, make, options, x, persistence, update):
    given = options(name) | {"persistence": persistence, "update_at_inference": update}
    block = Written(type=name.removeprefix("memory_"), params=MemoryParams(hidden=given.pop("hidden")), **given)
    assert block.runtime(DIMS) == {"type": block.type, "hidden": block.params.hidden} | given
    memory = make(torch.bfloat16, **{k: v for k, v in block.runtime(DIMS).items() if k != "type"})
    assert block.tensors(DIMS) == {key: tuple(t.shape) for key, t in memory.named_parameters()}
    assert block.buffers(DIMS) == {key: tuple(t.shape) for key, t in memory.named_buffers()}
    for length in (1, 5, 8, 9, 10, 40):
        session = Session(memory)
        session(x[:1, :length].bfloat16())
        held = sum(tensor.nbytes for tensor in session.state.values())
        assert block.kv_cache_bytes(DIMS, length) + block.state_bytes(DIMS) == held

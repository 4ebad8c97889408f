"""The laws every memory file obeys, found by file name; float64, odd sizes. The memory stands alone, or in a layer."""

import copy
import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import eulerstack.modeling
from eulerstack.language.block import Dims
from eulerstack.language.memory import Memory as Written
from eulerstack.language.memory import MemoryParams
from eulerstack.modeling.cache import EulerStackCache
from eulerstack.modeling.initial import Init, draw, rules_of
from eulerstack.modeling.op_context import build_context

MEMORIES = sorted(path.stem for path in Path(eulerstack.modeling.__path__[0]).glob("memory_*.py"))
PERSISTENCES = ("per_query", "session", "persistent")
B, T, D, P = 3, 41, 14, 5
EXACT = 1e-9
every_persistence = pytest.mark.parametrize("persistence", PERSISTENCES)


@pytest.fixture(params=MEMORIES)
def name(request):
    return request.param


@pytest.fixture
def make(name, part, options):
    """`make(**changes)`: the memory with its small options, changed; its start is drawn, buffers too."""

    def made(dtype=torch.float64, **changes):
        torch.manual_seed(0)
        config = SimpleNamespace(hidden_size=D, head_dim=P, num_attention_heads=3)
        memory = part(name)(config, 0, **options(name) | changes).double().eval()
        for parameter in memory.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.5)
        return memory.to(dtype)

    return made


@pytest.fixture
def x():
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Session:
    """Calls on one memory, with the history that a decoder would keep between them."""

    def __init__(self, memory):
        self.memory, self.past, self.state = memory, EulerStackCache(1), None

    def __call__(self, x, keep=None, places=None):
        context = build_context(
            x, past=self.past, attention_mask=keep, position_ids=places, use_cache=True, input_ids=None, extra={}
        )
        y, self.state = self.memory(x, context, self.state)
        self.past.advance([self.state], context.key_positions, context.key_keep, context.key_documents)
        return y


def whole(memory, x, **named):
    with torch.no_grad():
        return Session(memory)(x, **named)


def in_calls(memory, x, lengths, keep=None, places=None):
    session, out = Session(memory), []
    with torch.no_grad():
        for now in torch.arange(x.shape[1]).split(lengths):
            cut = [None if t is None else t[:, now] for t in (keep, places)]
            out.append(session(x[:, now], *cut))
    return torch.cat(out, 1), session.state


def close(a, b):
    gap = (a - b).abs().max().item() / b.std().item()
    assert gap < EXACT, f"{gap:.1e} standard deviations apart"


def places(*lengths):
    return torch.cat([torch.arange(n) for n in lengths])[None]


def remembered(memory, x):
    """The memory after a session of its own has been put into its buffers."""
    session = Session(memory)
    with torch.no_grad():
        session(x)
    memory.remember(session.state, row=1)
    return session.state


def test_files_are_found():
    assert set(MEMORIES) >= {"memory_associative", "memory_neural_memory", "memory_retrieval"}


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

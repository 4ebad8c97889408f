"""Blocks of real tokens of one document against counting them by hand, however the rows are padded, packed and cut."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eulerstack.modeling.op_block_mask import inside, near, reach_of
from eulerstack.modeling.op_blocks import blocks_of
from eulerstack.modeling.op_context import build_context
from eulerstack.modeling.op_mask import keys_of, retain


class Past:
    """What a cache tells build_context."""

    def __init__(self):
        self.positions = self.keep = self.documents = None

    seen = property(lambda self: 0 if self.positions is None else self.positions.shape[1])

    def history(self):
        return self.positions, self.keep, self.documents

    def next_positions(self):
        return self.positions.new_zeros(len(self.positions), 1)


def calls(keep: torch.Tensor, number: torch.Tensor, cuts: list[int]):
    """The contexts of consecutive calls over rows with padding (`keep`) and documents (`number`), cut at `cuts`."""
    past, places = Past(), torch.zeros_like(number)
    for b, row in enumerate(number):
        at = {}
        for s, document in enumerate(row.tolist()):
            places[b, s] = at.get(document, 0)
            at[document] = at.get(document, 0) + bool(keep[b, s])
    for a, z in zip([0, *cuts], [*cuts, number.shape[1]], strict=True):
        x = torch.zeros(len(number), z - a, 1)
        named = {"attention_mask": keep[:, :z].long(), "position_ids": places[:, a:z]}
        context = build_context(x, past=past, use_cache=True, input_ids=None, extra={}, **named)
        past.positions, past.keep, past.documents = context.key_positions, context.key_keep, context.key_documents
        yield context, a, z


@st.composite
def rows(draw):
    """Two rows of up to 19 tokens: what is real, the number of the document, and where the calls are cut."""
    length = draw(st.integers(1, 19))
    bits = st.lists(st.booleans(), min_size=length, max_size=length)
    keep = torch.tensor([draw(bits) for _ in range(2)])
    if draw(st.booleans()):
        keep = torch.ones_like(keep)
    starts = torch.tensor([draw(bits) for _ in range(2)]) if draw(st.booleans()) else torch.zeros_like(keep)
    cuts = sorted(draw(st.sets(st.integers(1, length - 1), max_size=4))) if length > 1 else []
    return keep, starts.long().cumsum(1), cuts


def by_hand(keep: list, number: list, size: int):
    """Per document the slots of its real tokens, and the entries of the row: (document, its block, slots)."""
    documents = {d: [s for s in range(len(keep)) if number[s] == d and keep[s]] for d in sorted(set(number))}
    found = [
        (d, j, slots[j * size : (j + 1) * size]) for d, slots in documents.items() for j in range(len(slots) // size)
    ]
    return documents, found


@given(rows(), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_blocks_are_those_counted_by_hand(drawn, size):
    """Entries hold the slots of their tokens: joined over the calls they are the blocks, and visible once complete."""
    keep, number, cuts = drawn
    tails, entries = None, None
    for context, a, z in calls(keep, number, cuts):
        blocks = blocks_of(context, size)
        now = torch.arange(a, z).expand(2, -1)
        held = now if tails is None else torch.cat((tails, now), 1)
        entries = blocks.join(entries, blocks.gather(held))
        tails = retain(held, context, size - 1)
        visible, back = blocks.visible().expand(2, -1, -1), blocks.back(slice(0, z - a)).expand(2, -1, -1)
        for b in range(2):
            documents, want = by_hand(keep[b, :z].tolist(), number[b, :z].tolist(), size)
            for t in (t for t in range(a, z) if keep[b, t]):
                document = number[b, t].item()
                seen = [entries[b, e].tolist() for e in visible[b, t - a].nonzero().flatten()]
                assert seen == [slots for d, _, slots in want if d == document and slots[-1] <= t]
                for e in visible[b, t - a].nonzero().flatten():
                    mine = documents[document]
                    assert back[b, t - a, e] == mine.index(t) - mine.index(entries[b, e, 0].item())


def whole(group, slots, now: slice) -> dict:
    """The slots of the keys that each (row, query) sees."""
    seen, held = group.seen.expand(2, -1, -1), slots[:, group.keys]
    return {(b, t): held[b][seen[b, i]].tolist() for b in range(2) for i, t in enumerate(range(now.start, now.stop))}


@given(rows(), st.integers(1, 5), st.none() | st.integers(1, 7), st.randoms())
@settings(max_examples=150, deadline=None)
def test_keys_in_reach_are_those_counted_by_hand(drawn, size, window, random):
    keep, number, cuts = drawn
    slots = None
    for context, a, z in calls(keep, number, cuts):
        reach = reach_of(size, window)
        now = torch.arange(a, z).expand(2, -1)
        slots = now if slots is None else torch.cat((slots, now), 1)
        run = random.randint(1, 7)
        runs = [slice(t, min(t + run, z - a)) for t in range(0, z - a, run)]
        blocks = blocks_of(context, size)
        chosen = torch.tensor([random.random() < 0.5 for _ in range(blocks.slots)], dtype=torch.bool).expand(
            2, z - a, -1
        )
        chosen = chosen & blocks.visible()
        every = torch.arange(z).expand(2, -1)
        seen = [whole(near(context, size, window, now), slots, now) for now in runs]
        within = [whole(inside(context, blocks, chosen, None, now), every, now) for now in runs]
        seen, within = ({t: x for part in parts for t, x in part.items()} for parts in (seen, within))
        for b in range(2):
            documents, want = by_hand(keep[b, :z].tolist(), number[b, :z].tolist(), size)
            for t in (t for t in range(a, z) if keep[b, t]):
                mine = documents[number[b, t].item()]
                n = mine.index(t)
                close = [s for i, s in enumerate(mine[: n + 1]) if i // size == n // size or n - i < (window or 0)]
                assert seen[b, t - a] == close
                best = [s for e in chosen[b, t - a].nonzero().flatten() for s in want[e][2]]
                own = [s for i, s in enumerate(mine[: n + 1]) if i // size == n // size]
                assert within[b, t - a] == sorted({*best, *own})
        slots = retain(slots, context, reach)
        assert slots.shape[1] <= reach
        assert keys_of(context, None).count.shape[1] == z

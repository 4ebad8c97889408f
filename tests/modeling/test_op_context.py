"""Places, padding and document borders, as small tables."""

from types import SimpleNamespace

import pytest
import torch

from eulerstack.modeling.cache import EulerStackCache
from eulerstack.modeling.op_context import build_context


def make(b, t, past=None, extra=None, attention_mask=None, position_ids=None):
    tables = {"attention_mask": attention_mask, "position_ids": position_ids}
    tables = {name: value if value is None else torch.tensor(value) for name, value in tables.items()}
    extra = {name: torch.tensor(value) for name, value in (extra or {}).items()}
    return build_context(torch.zeros(b, t, 3), past=past, use_cache=True, input_ids=None, extra=extra, **tables)


def after(context):
    cache = EulerStackCache(0)
    cache.advance([], context.key_positions, context.key_keep, context.key_documents)
    return cache


def rows(tensor):
    return None if tensor is None else tensor.int().tolist()


def test_plain():
    c = make(2, 3)
    assert rows(c.positions) == [[0, 1, 2]] * 2
    assert c.keep is c.starts is c.key_keep is c.key_documents is None
    assert c.past == 0


def test_continued():
    c = make(2, 2, after(make(2, 3)))
    assert rows(c.positions) == [[3, 4]] * 2
    assert rows(c.key_positions) == [[0, 1, 2, 3, 4]] * 2
    assert c.past == 3


def test_a_mask_of_ones_says_nothing():
    assert make(1, 3, attention_mask=[[1, 1, 1]]).keep is None


def test_padding_is_not_counted():
    c = make(2, 4, attention_mask=[[0, 0, 1, 1], [1, 1, 1, 0]])
    assert rows(c.positions) == [[0, 0, 0, 1], [0, 1, 2, 2]]
    assert rows(c.keep) == [[0, 0, 1, 1], [1, 1, 1, 0]]
    assert c.starts is None


@pytest.mark.parametrize("mask", [[[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 1, 0]], [[1, 1], [1, 0]]])
def test_padding_then_continued(mask):
    past = after(make(2, 4, attention_mask=[[0, 0, 1, 1], [1, 1, 1, 0]]))
    c = make(2, 2, past, attention_mask=mask)
    assert rows(c.positions) == [[2, 3], [3, 3]]
    assert rows(c.keep) == [[1, 1], [1, 0]]
    assert rows(c.key_keep) == [[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 1, 0]]


def test_padding_that_comes_later_or_no_more():
    c = make(1, 2, after(make(1, 2)), attention_mask=[[1, 1, 0, 1]])
    assert rows(c.key_keep) == [[1, 1, 0, 1]]
    c = make(1, 1, after(c))
    assert (rows(c.positions), c.keep, rows(c.key_keep)) == ([[3]], None, [[1, 1, 0, 1, 1]])


def test_a_row_of_padding_starts_later():
    past = after(make(2, 2, attention_mask=[[0, 0], [1, 1]]))
    assert rows(make(2, 2, past).positions) == [[0, 1], [2, 3]]


def test_places_as_given():
    assert rows(make(2, 3, position_ids=[[4, 5, 6]]).positions) == [[4, 5, 6]] * 2
    assert make(2, 3, position_ids=[[4, 5, 6]]).starts is None


@pytest.mark.parametrize(
    ("extra", "places"),
    [
        ({}, [[0, 1, 0, 1, 2]]),
        ({"seq_idx": [[3, 3, 8, 8, 8]]}, None),
        ({"cu_seq_lens_q": [0, 2, 5]}, None),
        ({"cu_seq_lens": [0, 2, 5]}, None),
    ],
)
def test_documents(extra, places):
    c = make(1, 5, extra=extra, position_ids=places)
    assert rows(c.positions) == [[0, 1, 0, 1, 2]]
    assert rows(c.starts) == [[0, 0, 1, 0, 0]]
    assert rows(c.key_documents) == [[0, 0, 1, 1, 1]]


def test_documents_over_several_flattened_rows():
    c = make(2, 3, extra={"cu_seq_lens_q": [0, 2, 4, 6]})
    assert rows(c.starts) == [[0, 0, 1], [0, 1, 0]]


def test_numbers_say_more_than_places():
    c = make(1, 4, extra={"seq_idx": [[0, 0, 0, 1]]}, position_ids=[[0, 1, 0, 1]])
    assert rows(c.starts) == [[0, 0, 0, 1]]
    assert rows(c.positions) == [[0, 1, 0, 1]]


def test_documents_go_on_in_the_next_call():
    past = after(make(1, 3, position_ids=[[0, 1, 0]]))
    c = make(1, 3, past, position_ids=[[1, 2, 0]])
    assert rows(c.starts) == [[0, 0, 1]]
    assert rows(c.key_documents) == [[0, 0, 1, 1, 1, 2]]
    c = make(1, 1, after(c), position_ids=[[0]])
    assert rows(c.starts) == [[1]]
    assert rows(c.key_documents) == [[0, 0, 1, 1, 1, 2, 3]]
    c = make(1, 1, after(c))
    assert (rows(c.positions), c.starts, rows(c.key_documents)[0][-1]) == ([[1]], None, 3)


def test_a_jump_between_calls_is_no_document():
    past = after(make(1, 4, attention_mask=[[1, 1, 1, 0]], position_ids=[[0, 1, 2, 0]]))
    assert make(1, 1, past, position_ids=[[1]]).starts is None


def test_places_on_padding_start_nothing():
    c = make(1, 6, attention_mask=[[0, 0, 1, 1, 0, 1]], position_ids=[[1, 1, 0, 1, 9, 2]])
    assert c.starts is None
    c = make(1, 6, attention_mask=[[0, 1, 1, 0, 1, 1]], position_ids=[[0, 0, 1, 0, 0, 1]])
    assert rows(c.starts) == [[0, 0, 0, 0, 1, 0]]


@pytest.mark.parametrize("mask", [[[1, 1]], [[1, 1, 1, 1]], [[[1, 1, 1]]], [[1, 1, 1]] * 2])
def test_masks_of_other_shapes_are_refused(mask):
    with pytest.raises(ValueError, match="attention_mask must be"):
        make(1, 3, attention_mask=mask)


@pytest.mark.parametrize("places", [[[0, 1]], [[0, 1, 2]] * 2, [0, 1, 2]])
def test_places_of_other_shapes_are_refused(places):
    with pytest.raises(ValueError, match="position_ids must be"):
        make(1, 3, position_ids=places)


def test_an_empty_cache_is_no_past():
    assert make(1, 2, EulerStackCache(0)).past == 0
    assert make(1, 2, SimpleNamespace(seen=0)).past == 0

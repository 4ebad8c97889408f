import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eulerstack.cli.folding import Fold, fold, unfold


def text(folds) -> str:
    words = (text(f.body) if f.body else str(f.item) for f in folds)
    return " ".join(f"{f.times}({word})" if f.times > 1 else word for f, word in zip(folds, words, strict=True))


FOLDED = {
    "": "",
    "a": "a",
    "aaaa": "4(a)",
    "ab": "a b",
    "ababab": "3(a b)",
    "mmmammmammma": "3(3(m) a)",
    "mmmmammmammmamm": "3(m) 3(m a 2(m))",
    "abacabacabacabac": "4(a b a c)",
    "aabbaabbc": "2(2(a) 2(b)) c",
    "abababcabababc": "2(3(a b) c)",
    "xababy": "x 2(a b) y",
}


@pytest.mark.parametrize("items", FOLDED)
def test_repeats_and_groups_of_them(items):
    assert text(fold(items)) == FOLDED[items]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_nothing_is_lost_and_it_is_never_longer_than_runs(items):
    folds = fold(items)
    assert unfold(folds) == items
    runs = sum(1 for i, item in enumerate(items) if i == 0 or items[i - 1] != item)
    assert sum(one.lines for one in folds) <= runs


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.integers(2, 9))
def test_a_repeated_group_is_never_longer_than_the_group_with_its_brackets(block, times):
    assert sum(f.lines for f in fold(block * times)) <= 1 + sum(f.lines for f in fold(block))


def test_thousands_of_layers_take_no_time():
    start = time.process_time()
    assert fold("a" * 10_000) == (Fold(10_000, "a"),)
    assert text(fold("aaab" * 2_500)) == "2500(3(a) b)"
    assert time.process_time() - start < 20

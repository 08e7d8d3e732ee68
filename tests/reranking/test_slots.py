"""Slots of words: numbers of what is the same are the same, whether they are counted or sorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.reranking import features
from rescorer.reranking.features import ListView, find_slots, index_slots, number_values

lists = st.lists(st.lists(st.sampled_from("abc"), max_size=6).map(tuple), min_size=1, max_size=6)


def test_the_kth_word_that_is_inserted_has_a_slot_of_its_own():
    words = [tuple("abc"), tuple("axybc"), tuple("bc"), tuple("axbcz"), ()]
    view = ListView({}, words, (), -np.arange(5.0))
    step = 6
    expected = [0, 1, 2, 0, 1 + 1 / 6, 1 + 2 / 6, 1, 2, 1, 2, 0, 1 + 1 / 6, 1, 2, 3 + 1 / 6]
    np.testing.assert_array_equal(find_slots(view), np.rint(np.array(expected) * step))


@given(st.lists(st.integers(0, 30)).map(np.array), st.integers(1, 40))
def test_numbers_values_in_ascending_order(values, cells):
    values = values.astype(np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "MAX_SLOT_CELLS", cells)
        np.testing.assert_array_equal(number_values(values), np.unique(values, return_inverse=True)[1])


@given(lists, st.sampled_from([1, 10, 100]))
def test_index_tells_slots_and_words_apart(words, cells):
    view = ListView({}, words, (), np.zeros(len(words)))
    pairs = list(zip(find_slots(view).tolist(), view.codes.tolist(), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "MAX_SLOT_CELLS", cells)
        index = index_slots(view).tolist()
    assert len(set(pairs)) == len(set(index)) == len(set(zip(pairs, index, strict=True)))

"""Folds share neither groups nor references, whatever the order of the lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.evaluation.folds import make_folds

LISTS = st.lists(
    st.tuples(st.sampled_from(["s1", "s2", "s3", "s4"]), st.sampled_from("abcdefgh")),
    min_size=2,
    max_size=14,
)


def join_slowly(names, references):
    """Slow twin of the union-find: merge sets until nothing changes."""
    sets = [{name, f"reference {reference}"} for name, reference in zip(names, references, strict=True)]
    changed = True
    while changed:
        changed = False
        for first in sets:
            for second in sets:
                if first is not second and first & second and first != second:
                    union = first | second
                    first |= union
                    second |= union
                    changed = True
    return [frozenset(members) for members in sets]


@given(LISTS)
def test_units_hang_together_by_groups_and_references(lists):
    groups, references = zip(*lists, strict=True)
    ids = [f"u{i}" for i in range(len(lists))]
    names = [group or list_id for group, list_id in zip(groups, ids, strict=True)]
    names = names if len(set(groups)) > 1 else ids
    expected = join_slowly(names, references)
    try:
        folds = make_folds(ids, groups, references)
    except ConfigError:
        assert len(set(names)) < 2
        return
    for i in range(len(lists)):
        for j in range(len(lists)):
            if not folds.shares_references:
                assert (folds.unit[i] == folds.unit[j]) == (expected[i] == expected[j])
            if folds.unit[i] == folds.unit[j]:
                assert folds.fold[i] == folds.fold[j]
    for fold in range(folds.n_folds):
        tuning, held_out = folds.split(fold)
        assert not {references[i] for i in tuning} & {references[i] for i in held_out}
        assert not {names[i] for i in tuning} & {names[i] for i in held_out}
    assert sorted(i for fold in range(folds.n_folds) for i in folds.split(fold)[1]) == [*range(len(lists))]


@given(st.permutations(range(12)))
def test_folds_do_not_depend_on_the_order_of_the_lists(order):
    ids, groups = [f"u{i}" for i in range(12)], [f"s{i // 2}" for i in range(12)]
    references = [f"r{i // 3}" for i in range(12)]

    def held_together(order):
        arguments = ([part[i] for i in order] for part in (ids, groups, references))
        folds = make_folds(*arguments, n_folds=3)
        return {
            frozenset(ids[order[i]] for i in np.flatnonzero(folds.fold == f)) for f in range(folds.n_folds)
        }

    assert held_together(order) == held_together(range(12))


def test_dialogues_in_which_everybody_says_yes_are_divided_by_group():
    groups = [f"dialogue {i // 3}" for i in range(30)]
    references = ["yes" if i % 3 else f"order {i}" for i in range(30)]
    folds = make_folds([f"u{i}" for i in range(30)], groups, references)
    assert folds.shares_references
    assert folds.n_units == 10
    tuning, held_out = folds.split(0)
    assert {references[i] for i in tuning}.isdisjoint({"yes"})
    assert len(held_out) == 6
    assert "do not tune its weights" in folds.describe()


def test_folds_are_about_equal_and_bounded():
    groups = [f"s{i % 23}" for i in range(460)]
    folds = make_folds([str(i) for i in range(460)], groups, [str(i) for i in range(460)])
    sizes = np.bincount(folds.fold)
    assert len(sizes) == 5
    assert sizes.max() - sizes.min() <= 20


def test_one_list_cannot_be_held_out():
    with pytest.raises(ConfigError, match="at least two lists"):
        make_folds(["u1", "u1"], ["", ""], ["a", "a"])

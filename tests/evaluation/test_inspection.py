"""The audit of lists: a warning for each thing that is wrong, none for lists that are sound; sums."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import InvalidList
from rescorer.evaluation.error_rate.error_counts import count_errors
from rescorer.evaluation.inspection.inspect import inspect_lists
from rescorer.text import Normaliser
from tests.support.inspection_cases import (
    SOUND,
    TOTAL,
    WORDS,
    codes,
    ranked,
    reversed_lists,
    with_empty,
    with_scores,
    with_texts,
)
from tests.support.list_strategies import nbest_lists

LOG_10 = math.log(10.0)


def test_sound_lists_give_no_finding():
    assert inspect_lists(SOUND, Normaliser(), first_pass={"acoustic": 1, "lm": 1}).findings == ()
    assert inspect_lists(TOTAL, Normaliser(), vocabulary=frozenset(WORDS)).findings == ()
    assert inspect_lists(ranked(TOTAL, lambda i: i), Normaliser()).findings == ()
    assert inspect_lists(ranked(TOTAL, lambda i: i + 1), Normaliser()).findings == ()


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([], {"nothing"}),
        ([*TOTAL, TOTAL[0]], {"same_id"}),
        (with_texts(TOTAL, lambda nbest, texts: [f"{nbest.id} {t}" for t in texts]), {"id_in_text"}),
        (
            with_texts(TOTAL, lambda nbest, texts: [" ".join(t.split()[1:]) for t in texts]),
            {"first_word"},
        ),
        (with_texts(TOTAL, lambda nbest, texts: [*texts[:-2], texts[0], texts[0]]), {"duplicates"}),
        (with_empty(TOTAL, 2.0), {"empty_near_best"}),
        (ranked(TOTAL, lambda i: i + 2), {"missing_1best"}),
        ([*ranked(TOTAL, lambda i: i), *ranked([replace(TOTAL[0], id="x")], lambda i: i + 1)],
         {"missing_1best"}),
        (with_scores(TOTAL, "score", lambda s: -s), {"backwards", "cost", "error_sign"}),
        (reversed_lists(TOTAL), {"backwards", "worse_than_random"}),
        (reversed_lists(TOTAL[:20]), {"backwards", "worse_than_random"}),
        (reversed_lists(TOTAL[:19]), {"backwards"}),
        ([replace(each, streams={"score": (*each.streams["score"][1:], each.streams["score"][0])})
          for each in TOTAL], {"unsorted"}),
        (with_scores(SOUND, "lm", lambda s: s / LOG_10), {"base"}),
        (with_scores(SOUND, "lm", lambda s: -s), {"cost", "error_sign"}),
        (with_scores(SOUND, "lm", lambda s: 9.5 * s), {"scale"}),
        (with_scores(SOUND, "acoustic", lambda s: round(s / math.log(1.0001))), {"scale"}),
        (with_scores(SOUND, "acoustic", math.exp), {"probability"}),
        (with_scores(SOUND, "acoustic", lambda s: 0.0), {"constant"}),
        ([replace(SOUND[0], streams={"lm": SOUND[0].streams["lm"]}), *SOUND[1:]], {"stream_missing"}),
    ],
)  # fmt: skip
def test_each_fault_gives_its_warning(lists, expected):
    assert codes(lists) == expected


def test_what_is_only_worth_knowing_is_a_note():
    assert codes([replace(each, streams={}) for each in TOTAL], "note") == {"no_streams"}
    assert codes(with_texts(TOTAL, lambda nbest, t: [t[0] + " <sil>", *t[:-1]]), "note") >= {
        "duplicates_normalised"
    }
    assert codes(with_empty(TOTAL, 50.0), "note") == {"empty"}
    assert codes(ranked(TOTAL, lambda i: 3 * i), "note") == {"rank_gaps"}
    firsts = [
        replace(n, hypotheses=n.hypotheses[:1], streams={"score": n.streams["score"][:1]}) for n in TOTAL
    ]
    assert codes(firsts, "note") == {"single", "no_gain"}


def test_a_list_that_cannot_be_audited_is_told_and_counts_nowhere():
    told = []
    bad = [
        replace(TOTAL[0], id="bad", reference="a { b / c"),
        replace(TOTAL[0], id="nan", streams={"score": ()}),
    ]
    found = inspect_lists([*TOTAL, *bad, InvalidList("broken")], Normaliser(), on_rejected=told.append)
    assert replace(found.lists, rejected=0) == inspect_lists(TOTAL, Normaliser()).lists
    assert (found.lists.rejected, len(told)) == (3, 3)
    assert "'bad'" in str(told[0])
    huge = replace(TOTAL[0], streams={"score": (1e308,) * len(TOTAL[0].hypotheses)})
    assert inspect_lists([huge], Normaliser(), first_pass={"score": 10.0}).lists.rejected == 1


# Braces are of alternations, which must be whole.
PLAIN = nbest_lists(["am"], references=True).filter(lambda nbest: not {*"{}"} & {*(nbest.reference or "")})


@given(st.lists(PLAIN, min_size=1, max_size=6))
def test_sums_are_those_of_the_lists(lists):
    """Against the obvious: every list looked at whole."""
    words = Normaliser().normalise
    found = inspect_lists(lists, Normaliser())
    texts = [[words(hypothesis.text) for hypothesis in nbest.hypotheses] for nbest in lists]
    assert found.lists.rejected == 0
    assert found.lists.words == sum(len(text) for each in texts for text in each)
    assert found.lists.duplicates_normalised == sum(len(each) - len(set(each)) for each in texts)
    prefixes = {
        (i, text[:n]) for i, each in enumerate(texts) for text in each for n in range(1, len(text) + 1)
    }
    ends = {(i, text) for i, each in enumerate(texts) for text in each}
    assert found.lists.prefixes == len(prefixes) + len(ends)
    (am,) = found.streams
    scores = [score for nbest in lists for score in nbest.streams["am"]]
    assert (am.minimum, am.maximum) == (min(scores), max(scores))
    n_words = [len(text) for each in texts for text in each]
    assert am.per_word == pytest.approx(sum(scores) / (sum(n_words) + len(n_words)), rel=1e-9, abs=1e-6)
    sorted_ = [n for n in lists if len(set(n.streams["am"])) > 1 and list(n.streams["am"])
               == sorted(n.streams["am"], reverse=True)]  # fmt: skip
    assert am.descending == len(sorted_)
    errors = [
        [count_errors(words(nbest.reference), text).errors for text in each]
        for nbest, each in zip(lists, texts, strict=True)
        if nbest.reference is not None
    ]
    if not errors:
        assert found.errors is None
        return
    deepest = max(map(len, errors))
    depths = [sum(min(each[: depth + 1]) for each in errors) for depth in range(deepest)]
    assert list(found.errors.errors_at_depth) == depths
    assert found.errors.random_errors == pytest.approx(sum(sum(each) / len(each) for each in errors))
    assert found.errors.totals.oracle.errors == depths[-1]
    depth = found.errors.depth_for(0.9)
    assert depths[0] - depths[depth - 1] >= 0.9 * (depths[0] - depths[-1]) - 1e-9
    assert found.errors.to_dict()["with_reference"] == len(errors)

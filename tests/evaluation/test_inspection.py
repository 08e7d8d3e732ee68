"""Inspection of lists: one warning per problem, none for sound lists, and correct statistics."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import InvalidList
from rescorer.evaluation import inspection
from rescorer.evaluation.error_rate import count_errors
from rescorer.evaluation.inspection import inspect_lists
from rescorer.evaluation.word_statistics import WordTally
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList, Weights
from tests.support.inspection_cases import (
    SOUND,
    TOTAL,
    WORDS,
    finding_codes,
    reversed_lists,
    with_empty,
    with_ranks,
    with_scores,
    with_texts,
)
from tests.support.list_strategies import nbest_lists

LOG_10 = math.log(10.0)


def test_finds_nothing_in_sound_lists():
    assert (
        inspect_lists(SOUND, Normaliser(), first_pass=Weights(streams={"acoustic": 1, "lm": 1})).findings
        == ()
    )
    assert inspect_lists(TOTAL, Normaliser(), vocabulary=frozenset(WORDS)).findings == ()
    assert inspect_lists(with_ranks(TOTAL, lambda i: i), Normaliser()).findings == ()
    assert inspect_lists(with_ranks(TOTAL, lambda i: i + 1), Normaliser()).findings == ()


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([], {"nothing"}),
        ([*TOTAL, TOTAL[0]], {"same_id"}),
        (with_texts(TOTAL, lambda nbest, texts: [f"{nbest.id} {text}" for text in texts]), {"id_in_text"}),
        (with_texts(TOTAL, lambda nbest, texts: [f"a\t{text}" for text in texts]), {"tab_in_text"}),
        (
            with_texts(TOTAL, lambda nbest, texts: [" ".join(text.split()[1:]) for text in texts]),
            {"first_word"},
        ),
        (with_texts(TOTAL, lambda nbest, texts: [*texts[:-2], texts[0], texts[0]]), {"duplicates"}),
        (with_empty(TOTAL, 2.0), {"empty_near_best"}),
        (with_ranks(TOTAL, lambda i: i + 2), {"missing_1best"}),
        ([*with_ranks(TOTAL, lambda i: i), *with_ranks([replace(TOTAL[0], id="x")], lambda i: i + 1)],
         {"missing_1best"}),
        (with_scores(TOTAL, "score", lambda s: -s), {"backwards", "cost", "error_sign"}),
        (reversed_lists(TOTAL), {"backwards", "worse_than_random"}),
        (reversed_lists(TOTAL[:20]), {"backwards", "worse_than_random"}),
        (reversed_lists(TOTAL[:19]), {"backwards"}),
        ([replace(nbest, streams={"score": (*nbest.streams["score"][1:], nbest.streams["score"][0])})
          for nbest in TOTAL], {"unsorted"}),
        (with_scores(SOUND, "lm", lambda s: s / LOG_10), {"base"}),
        (with_scores(SOUND, "lm", lambda s: -s), {"cost", "error_sign"}),
        (with_scores(SOUND, "lm", lambda s: 9.5 * s), {"scale"}),
        (with_scores(SOUND, "acoustic", lambda s: round(s / math.log(1.0001))), {"scale"}),
        (with_scores(SOUND, "acoustic", math.exp), {"probability"}),
        (with_scores(SOUND, "acoustic", lambda s: 0.0), {"constant"}),
        ([replace(SOUND[0], streams={"lm": SOUND[0].streams["lm"]}), *SOUND[1:]], {"stream_missing"}),
    ],
)  # fmt: skip
def test_warns_about_each_problem(lists, expected):
    assert finding_codes(lists) == expected


def test_notes_what_is_worth_knowing():
    assert finding_codes([replace(nbest, streams={}) for nbest in TOTAL], "note") == {"no_streams"}
    repeated = with_texts(TOTAL, lambda nbest, texts: [texts[0] + " <sil>", *texts[:-1]])
    assert finding_codes(repeated, "note") >= {"duplicates_normalised"}
    assert finding_codes(with_empty(TOTAL, 50.0), "note") == {"empty"}
    assert finding_codes(with_ranks(TOTAL, lambda i: 3 * i), "note") == {"rank_gaps"}
    firsts = [
        replace(nbest, hypotheses=nbest.hypotheses[:1], streams={"score": nbest.streams["score"][:1]})
        for nbest in TOTAL
    ]
    assert finding_codes(firsts, "note") == {"single", "no_gain"}


@pytest.mark.parametrize(("right", "is_warned"), [(14, False), (10, False), (9, True), (0, True)])
def test_first_hypotheses_are_worse_than_random_only_beyond_chance(right, is_warned):
    """If 14 of 30 first hypotheses of two are right, one more is wrong than at random, by chance."""
    lists = [
        NBestList(str(number), (Hypothesis("a"), Hypothesis("b")), reference="a" if number < right else "b")
        for number in range(30)
    ]
    found = inspect_lists(lists, Normaliser())
    assert found.errors is not None
    assert found.errors.totals.system.errors == 30 - right > found.errors.random_errors == 15
    assert found.errors.random_deviation == pytest.approx(math.sqrt(30 / 4))
    assert ("worse_than_random" in {one.code for one in found.findings}) == is_warned


def test_a_sample_of_many_lists_is_spread_evenly(monkeypatch):
    """All lists were examined, which took minutes for a day of lists."""
    monkeypatch.setattr(inspection, "MAX_SAMPLE_CHARS", 10_000)
    numbered = [replace(TOTAL[0], id=str(number)) for number in range(1000)]
    lists = [*numbered[:700], InvalidList("broken"), *numbered[700:], replace(TOTAL[0], hypotheses=())]
    sample = inspection.ListSample()
    for nbest in numbered:
        sample.add(nbest)
    assert [nbest.id for nbest in sample.lists] == [str(number) for number in range(0, 1000, sample.step)]
    found = inspect_lists(lists, Normaliser())
    assert (found.n_read, found.lists.rejected) == (1000, 2)
    assert found.lists.lists == len(list(sample.lists)) > 10
    assert found.to_dict()["read_lists"] == 1000
    assert f"one in {sample.step}" in next(one.message for one in found.findings if one.code == "sample")
    every = inspect_lists(lists, Normaliser(), examine_all=True)
    assert (every.n_read, every.lists.lists, every.lists.rejected) == (1000, 1000, 2)
    assert "sample" not in {one.code for one in every.findings}


def test_fields_that_are_not_read_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(inspection, "MAX_SAMPLE_CHARS", 10_000)
    sample = inspection.ListSample()
    for _ in range(64):
        sample.add(replace(TOTAL[0], fields={"times": "0" * 160_000}))
    assert (sample.step, len(list(sample.lists))) == (64, 1)


def test_reports_invalid_lists_without_counting_them():
    errors = []
    bad = [
        replace(TOTAL[0], id="bad", reference="a { b / c"),
        replace(TOTAL[0], id="nan", streams={"score": ()}),
    ]
    found = inspect_lists([*TOTAL, *bad, InvalidList("broken")], Normaliser(), on_rejected=errors.append)
    assert replace(found.lists, rejected=0) == inspect_lists(TOTAL, Normaliser()).lists
    assert (found.lists.rejected, len(errors)) == (3, 3)
    assert sum("'bad'" in str(error) for error in errors) == 1
    huge = replace(TOTAL[0], streams={"score": (1e308,) * len(TOTAL[0].hypotheses)})
    assert (
        inspect_lists([huge], Normaliser(), first_pass=Weights(streams={"score": 10.0})).lists.rejected == 1
    )


# Braces mark alternations, which must be well formed.
PLAIN = nbest_lists(["am"], references=True).filter(
    lambda nbest: (
        not {*"{}"} & {*(nbest.reference or ""), *"".join(hypothesis.text for hypothesis in nbest.hypotheses)}
    )
)


@given(st.lists(PLAIN, min_size=1, max_size=6))
def test_statistics_match_brute_force(lists):
    words = Normaliser().normalise
    found = inspect_lists(lists, Normaliser())
    texts = [[words(hypothesis.text) for hypothesis in nbest.hypotheses] for nbest in lists]
    assert found.lists.rejected == 0
    assert found.lists.words == sum(len(text) for hypotheses in texts for text in hypotheses)
    assert found.lists.duplicates_normalised == sum(
        len(hypotheses) - len(set(hypotheses)) for hypotheses in texts
    )
    prefixes = {
        (i, text[:n])
        for i, hypotheses in enumerate(texts)
        for text in hypotheses
        for n in range(1, len(text) + 1)
    }
    ends = {(i, text) for i, hypotheses in enumerate(texts) for text in hypotheses}
    assert found.lists.prefixes == len(prefixes) + len(ends)
    check_stream(found.streams, lists, [len(text) for hypotheses in texts for text in hypotheses])
    errors = [
        [count_errors(words(nbest.reference), text).errors for text in hypotheses]
        for nbest, hypotheses in zip(lists, texts, strict=True)
        if nbest.reference is not None
    ]
    if not errors:
        assert found.errors is None
        return
    deepest = max(map(len, errors))
    depths = [sum(min(counts[: depth + 1]) for counts in errors) for depth in range(deepest)]
    assert list(found.errors.errors_at_depth) == depths
    assert found.errors.random_errors == pytest.approx(sum(sum(counts) / len(counts) for counts in errors))
    assert found.errors.totals.oracle.errors == depths[-1]
    depth = found.errors.depth_for(0.9)
    assert depths[0] - depths[depth - 1] >= 0.9 * (depths[0] - depths[-1]) - 1e-9
    assert found.errors.to_dict()["with_reference"] == len(errors)


def check_stream(streams, lists, n_words):
    (am,) = streams
    scores = [score for nbest in lists for score in nbest.streams["am"]]
    assert (am.minimum, am.maximum) == (min(scores), max(scores))
    assert am.per_word == pytest.approx(sum(scores) / (sum(n_words) + len(n_words)), rel=1e-9, abs=1e-6)
    descending = [
        nbest
        for nbest in lists
        if len(set(nbest.streams["am"])) > 1
        and list(nbest.streams["am"]) == sorted(nbest.streams["am"], reverse=True)
    ]
    assert am.descending == len(descending)


@pytest.mark.parametrize("largest", [9, 200_000])
def test_recognises_integer_ids(largest):
    """Small ids, too; but not numbers among words."""
    texts = [f"{i % 7} {i * 31 % largest} {i % 3}" for i in range(40)]
    lists = [NBestList(f"u{i}", (Hypothesis(text), Hypothesis(text + " 1"))) for i, text in enumerate(texts)]
    codes = {finding.code for finding in inspect_lists(lists, Normaliser()).findings}
    assert "integer_ids" in codes
    vocabulary = frozenset(map(str, range(1000)))  # of a bundle that knows numbers
    tally = WordTally()
    tally.add(["3 4", "5 400"], ["three", "words"])
    assert tally.stats(Normaliser(), vocabulary).integers.count == 4
    tally.add([], ["7"])
    assert tally.stats(Normaliser()).integers.count == 4
    spoken = WordTally()
    spoken.add(["3 4", "3 5"], ["3", "4"])
    assert spoken.stats(Normaliser()).integers.count == 0
    lists[0] = NBestList("u0", (Hypothesis("route 66"), Hypothesis("1 2")))
    assert "integer_ids" not in {finding.code for finding in inspect_lists(lists, Normaliser()).findings}

"""Batches as columns: word numbers and plain hypotheses give the bytes that objects give, odd lists too."""

from __future__ import annotations

import copy
import io
import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.formats.fields import FieldMap, parse_field_map
from rescorer.formats.jsonlines import _parse_columns, _parse_rows, _parse_score_objects, read_lists
from rescorer.jobs.files import LocalRescorer, rescore_lists
from rescorer.list_checks import MAX_WORDS
from rescorer.models.bundle import read_bundle
from rescorer.pipeline import Rescorer
from rescorer.scoring.ranker import TEXTS_AT_ONCE, ListRanker, _find_each, _words_of
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.text.normaliser import MAX_NUMBERED_WORDS
from rescorer.text.token_table import TokenTable
from rescorer.trie import build_trie, join_texts, text_lengths
from rescorer.types import Hypothesis, NBestList, PlainHypotheses

NAMES = parse_field_map(["hypotheses=hyps"], ["acoustic=am"])
TOKENS = st.sampled_from(
    [
        *(
            "the",
            "The",
            "cat",
            "sat,",
            "on",
            "cat-like",
            "we_did",
            "<s>",
            "[noise]",
            "\ufdd0",
            "a\ufdd0",
            "null",
        ),
        *(
            "é",
            "\xa0",
            "naïve-",
            "тест",
            "\ud800",
            "-".join("abcdefghi"),
            "eightlet",
            "sixteen-letters-",
            "seventeenletterss",
            "seventeenletterst",
        ),
    ]
)
TEXTS = st.lists(TOKENS, max_size=5).map(" ".join) | st.just("  the\tcat ")
SETTINGS = NormaliserSettings(), NormaliserSettings.raw()
SCORES = st.floats(-100, 100) | st.integers(-100, 100)
HYPOTHESES = st.fixed_dictionaries({"text": TEXTS, "am": SCORES})
ODD = st.sampled_from(
    [
        *({}, {"text": 1, "am": 0.5}, {"text": "a"}, {"text": "a", "am": None}, {"text": "a", "am": "x"}),
        *({"text": "cat", "am": 1, "conf": 0.5}, {"text": "a", "am": 1, "scores": {"lm": 2}}, "a", ["a", 1]),
    ]
).map(copy.deepcopy)
RECORDS = st.fixed_dictionaries(
    {"id": st.sampled_from(["u1", "u2", ""]), "hyps": st.lists(HYPOTHESES, min_size=1, max_size=4)},
    optional={"context": TEXTS, "job": st.integers()},
) | st.fixed_dictionaries({"id": st.just("odd"), "hyps": st.lists(HYPOTHESES | ODD, max_size=3)})


@pytest.fixture(scope="module")
def uncached(bundle):
    """A library whose scores do not depend on what it scored before."""
    return Rescorer.load(bundle, context_cache_bytes=0)


def write_all(library, lists) -> tuple[list[str], list[str]]:
    """The lines that a job writes, and those of its rejects."""
    written, rejects = [], []
    rescore_lists(LocalRescorer(library), lists, written.append, rejects.append)
    return written, rejects


def with_objects(nbest):
    """The list with an object for each hypothesis."""
    return replace(nbest, hypotheses=tuple(nbest.hypotheses)) if isinstance(nbest, NBestList) else nbest


def raise_key_error(*_):
    raise KeyError


@given(st.lists(RECORDS, max_size=5))
def test_jobs_write_the_bytes_of_lists_of_objects(uncached, records):
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    lists = [*read_lists(io.BytesIO(content), NAMES)]
    uncached.ranker.bundle.normaliser.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ListRanker, "_number_tokens", raise_key_error)  # so that texts are read singly
        slow = write_all(uncached, [*map(with_objects, lists)])
    assert write_all(uncached, lists) == slow


@given(st.lists(HYPOTHESES | ODD, min_size=1, max_size=4))
def test_plain_hypotheses_are_those_that_rows_give(items):
    found = _parse_columns(copy.deepcopy(items), NAMES)
    if found is not None and isinstance(found[0], PlainHypotheses):
        hypotheses, columns = _parse_rows(copy.deepcopy(items), NAMES, "u1")
        assert found[0] == hypotheses
        assert {name: [*values] for name, values in found[1].items()} == columns


SCORED = st.fixed_dictionaries({"text": TEXTS, "scores": st.fixed_dictionaries({"am": SCORES, "lm": SCORES})})
ODD_SCORES = st.sampled_from(
    [
        *({"am": 1.5}, {"lm": 1, "am": 2}, {"am": None, "lm": 1}, {"am": "x", "lm": 1}, {}, None, [1, 2]),
        {"am": 1, "lm": 2, "x": 3},
    ]
).map(lambda scores: {"text": "a", "scores": copy.deepcopy(scores)})


@given(st.lists(SCORED, min_size=1, max_size=4))
def test_objects_of_the_same_scores_are_read_fast(items):
    assert _parse_score_objects(items, FieldMap()) is not None


@given(st.lists(SCORED | ODD_SCORES | ODD, min_size=1, max_size=4))
def test_objects_of_scores_are_read_as_row_by_row(items):
    found = _parse_score_objects(copy.deepcopy(items), FieldMap())
    if found is not None:
        hypotheses, columns = _parse_rows(copy.deepcopy(items), FieldMap(), "u1")
        assert found[0] == hypotheses
        assert [*found[1].items()] == [*columns.items()]


@given(st.lists(TEXTS, min_size=1, max_size=6), st.sampled_from(SETTINGS))
def test_numbers_of_tokens_are_those_of_their_words(texts, settings):
    normaliser = Normaliser(settings)
    words = [*map(normaliser.normalise, texts)]
    known, found = normaliser.known, []
    with suppress(KeyError):  # a token with very many words, or the mark between texts
        found.append(_find_each(known, texts, known.numbers.__getitem__))
        for bits in (1, 8):  # with one bit, most tokens lose their slots to others
            table = TokenTable(bits)
            for _ in range(2):  # new tokens, then known ones
                found.append(table.find(texts, known.numbers.__getitem__))
        assert all(found) or not all(text.isascii() and "\t" not in text for text in texts)
    for part in filter(None, found):
        numbered = _words_of(known, *part)
        assert [*numbered] == words
        assert text_lengths(numbered).tolist() == [*map(len, words)]


@given(
    st.lists(st.lists(TEXTS, max_size=4), max_size=5),
    st.sampled_from(SETTINGS),
    st.sampled_from([1, MAX_WORDS]),
    st.sampled_from([1, 3, TEXTS_AT_ONCE]),
)
def test_words_of_many_lists_are_those_of_each_text(bundle, lists, settings, max_words, at_once):
    ranker = ListRanker(replace(read_bundle(bundle), normaliser=Normaliser(settings)), ())
    nbests = [NBestList("u", PlainHypotheses(texts)) for texts in lists]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rescorer.scoring.ranker.TEXTS_AT_ONCE", at_once)
        for _ in range(2):  # new tokens, then known ones
            found = ranker.normalise_lists(nbests, max_words)
            assert len(found) == len(lists)
            for texts, words in zip(lists, found, strict=True):
                expected = [*map(Normaliser(settings).normalise, texts)]
                assert words is None or [*words] == expected
                cut = [text[: max_words + 1] for text in expected]
                assert [text[: max_words + 1] for text in ranker.normalise_texts(texts, max_words)] == cut


def test_a_list_whose_texts_are_odd_leaves_the_others_their_words(library):
    lists = [NBestList("u1", (Hypothesis("the cat"),)), NBestList("u2", (Hypothesis(None),))]
    assert library.ranker.normalise_lists(lists) == [None, None]
    assert library.ranker.normalise_lists([*lists[:1], NBestList("u3", (object(),))]) == [None, None]
    ranked, error = library.rescore_each(
        [replace(one, streams={"acoustic": (0.0,), "lm": (0.0,)}) for one in lists]
    )
    assert ranked.best.text == "the cat"
    assert (error.list_id, error.field) == ("u2", "text")


def test_tokens_of_several_words_and_accents_are_looked_up_together(library):
    lists = [
        NBestList("u1", PlainHypotheses(["the cat-like dog", "é"])),
        NBestList("u2", PlainHypotheses(["we_did"])),
    ]
    first, second = library.ranker.normalise_lists(lists)
    assert [*first] == [("the", "cat", "like", "dog"), ("é",)]
    assert [*second] == [("we", "did")]
    long = "-".join(["a"] * (MAX_NUMBERED_WORDS + 1))
    assert library.ranker.normalise_lists([*lists, NBestList("u3", PlainHypotheses([long]))]) == [None] * 3


def test_tokens_that_threads_add_at_once_keep_their_numbers():
    table, numbers = TokenTable(), {"first": 1, "second": 2}

    class Interrupted(dict):
        """Adds another token just before the first one gets its row, as another thread may."""

        def setdefault(self, token, row):
            if token == "first" and not self:
                table.find(["second"], numbers.__getitem__)
            return super().setdefault(token, row)

    table._row_of = Interrupted()
    table.find(["first"], numbers.__getitem__)
    found, _ = table.find(["second first"], {}.__getitem__)  # both are in the table
    assert found.tolist() == [2, 1]


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=4), min_size=1, max_size=4), st.booleans())
def test_a_trie_of_numbers_is_that_of_words(library, lists, is_mixed):
    ranker = library.ranker
    for texts in lists:
        ranker.normalise_texts(texts)
    numbered = [ranker.normalise_texts(texts) for texts in lists]
    words = [[*texts] for texts in numbered]
    contexts = [("the", "dog")[: len(texts) % 3] for texts in lists]
    fast = build_trie(
        join_texts(words[:1] + numbered[1:] if is_mixed else numbered), contexts, counts=[*map(len, lists)]
    )
    slow = build_trie(
        [text for texts in words for text in texts],
        [context for context, texts in zip(contexts, lists, strict=True) for _ in texts],
    )
    assert fast.words == slow.words
    assert fast.level_bounds == slow.level_bounds
    assert np.array_equal(fast.edge_word, slow.edge_word)
    for name in ("parent", "hypothesis_node", "end_nodes"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name))


def test_plain_hypotheses_are_a_sequence_of_hypotheses():
    plain, objects = PlainHypotheses(["a", "b"]), (Hypothesis("a"), Hypothesis("b"))
    assert plain == objects
    assert objects == plain
    assert plain == PlainHypotheses(["a", "b"])
    assert plain != objects[:1]
    assert plain[1:] == objects[1:]
    assert repr(plain) == repr(objects)

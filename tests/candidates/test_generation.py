"""Hypotheses that a list lacks: which are made, in which order, and what they carry."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import Hypothesis, InvalidList, NBestList, Phrase, candidates, sounds
from rescorer.candidates import GenerationSettings, Generator
from rescorer.extensions import Generation
from rescorer.sounds import Pronouncer, parse_dictionary
from rescorer.text import Normaliser
from rescorer.types import Generated
from tests.support.small_dictionary import LINES

WORDS = parse_dictionary(LINES)
NORMALISE = Normaliser().normalise


def make(**options) -> Generator:
    return Generator(NORMALISE, Pronouncer(WORDS), GenerationSettings(**options))


def nbest(*texts: str, phrases=(), **fields) -> NBestList:
    scores = {"acoustic": tuple(-float(i) for i in range(len(texts)))}
    return NBestList(
        "u", tuple(Hypothesis(text) for text in texts), scores, phrases=tuple(map(Phrase, phrases)), **fields
    )


def texts(generator, one):
    return [hypothesis.text for hypothesis in generator.generate(one, one.phrases)]


def test_a_phrase_replaces_what_sounds_like_it():
    one = nbest("please call rust", "the thorn ton sat", phrases=["Rusk", "Thornton"])
    extended = make().extend(one, one.phrases)
    new = extended.hypotheses[2:]
    assert [hypothesis.text for hypothesis in new] == ["the Thornton sat", "please call Rusk"]
    assert new[0].generated == Generated(1, 1, 3, "thorn ton", "Thornton", 0.0, 7)
    assert new[1].generated == Generated(0, 2, 3, "rust", "Rusk", 0.6, 4)
    assert extended.streams == {"acoustic": (0.0, -1.0, -1.0, 0.0)}
    assert extended.hypotheses[:2] == one.hypotheses


def test_the_list_itself_is_returned_if_nothing_is_new():
    for one in (
        nbest("please call rust"),
        nbest("please call rust", phrases=["canoe"]),
        nbest("please call rust", "please call Rusk!", phrases=["rusk"]),
        nbest("", phrases=["rusk"]),
        nbest("please call rusk", phrases=["rusk", "call rusk"]),
    ):
        assert make().extend(one, one.phrases) is one


def test_a_phrase_is_not_made_from_itself_and_its_surroundings():
    assert texts(make(max_distance=1.0), nbest("a cat", phrases=["cat"])) == []
    assert texts(make(max_distance=0.6), nbest("please call cat", phrases=["call cat"])) == []


def test_of_overlapping_spans_the_nearest_is_replaced():
    one = nbest("the thorn ton to the thorn ton", phrases=["thornton"])
    made = make(max_distance=0.5).generate(one, one.phrases)
    assert [(h.generated.start, h.generated.end) for h in made] == [(1, 3), (5, 7), (1, 3)]
    assert made[2].text == "the thornton to the thornton"


def test_other_spellings_are_heard_but_not_written():
    phrase = Phrase("Rusk", spellings=("knew york", "<sil>"))
    one = replace(nbest("to new yolk at", "knew york"), phrases=(phrase,))
    assert texts(make(), one) == ["to Rusk at"]


def test_fillers_stay_around_a_span_and_go_within_it():
    one = nbest("<sil> thorn <sil> ton <sil> sat", phrases=["thornton"])
    assert texts(make(), one) == ["<sil> thornton <sil> sat"]


def test_words_that_cannot_be_pronounced_are_never_replaced():
    assert texts(make(max_distance=0.2), nbest("thorn 42 ton", phrases=["thornton"])) == []
    assert texts(make(), nbest("42 rust <unk>", phrases=["rusk", "42", "日本"])) == ["42 rusk <unk>"]


def test_each_phrase_and_span_comes_once_before_any_comes_twice():
    one = nbest("call rust", "the call rust", "cat sat", phrases=["rusk", "mat"])
    made = make(max_distance=0.5).generate(one, one.phrases)
    heard = [(hypothesis.generated.phrase, hypothesis.generated.heard) for hypothesis in made]
    assert len(set(heard[: len(set(heard))])) == len(set(heard)) < len(heard)
    assert texts(make(max_distance=0.5, max_new=1, max_combined=0), one) == [made[0].text]


def test_only_the_best_hypotheses_are_sources():
    one = nbest("cat", "cats", "call rust", phrases=["rusk"])
    assert texts(make(top=2), one) == []
    assert texts(make(top=3), one) == ["call rusk"]


def test_partial_hypotheses_stay_partial_and_fields_come_from_the_source():
    words = [{"word": "call", "start_s": 0, "duration_s": 1}, {"word": "rust", "start_s": 1, "duration_s": 1}]
    one = replace(
        nbest("x", phrases=["rusk"]),
        hypotheses=(Hypothesis("call rust", {"words": words, "x": 1}, partial=True),),
    )
    (new,) = make().generate(one, one.phrases)
    assert new.partial
    assert new.fields == {"words": [words[0], {**words[1], "word": "rusk"}], "x": 1}


def test_too_many_phrases_are_refused(monkeypatch):
    monkeypatch.setattr(candidates, "MAX_SOUNDS", 2)
    one = replace(nbest("call rust"), phrases=(Phrase("rusk", spellings=("a", "b")),))
    with pytest.raises(InvalidList, match="3 phrases and spellings; expected at most 2") as error:
        make().generate(one, one.phrases)
    assert (error.value.list_id, error.value.field) == ("u", "phrases")


def test_spans_that_do_not_overlap_are_replaced_together():
    heard = ("Call", "rust,", "thorn", "ton")
    words = [{"word": word, "start_s": i, "duration_s": 1} for i, word in enumerate(heard)]
    one = replace(
        nbest("x", phrases=["rusk", "thornton"]),
        hypotheses=(Hypothesis("Call rust, thorn ton", {"words": words}),),
    )
    *single, both = make().generate(one, one.phrases)
    assert [hypothesis.text for hypothesis in single] == ["Call rust, thornton", "Call rusk, thorn ton"]
    assert both.text == "Call rusk, thornton"
    first, second = both.generated.parts
    assert (first.phrase, first.further, second) == ("rusk", (second,), single[0].generated)
    assert both.generated.sound_match == sum(hypothesis.generated.sound_match for hypothesis in single)
    assert both.fields["words"] == [
        words[0],
        {"word": "rusk,", "start_s": 1, "duration_s": 1},
        {"word": "thornton", "start_s": 2, "duration_s": 2},
    ]
    assert make(max_combined=0).generate(one, one.phrases) == single
    assert make(max_new=0).generate(one, one.phrases) == []


def combine_slowly(proposals: list[Generated]) -> set[tuple[Generated, ...]]:
    """Every set of two or three of the best proposals of a source in which no word is replaced twice."""
    found = set()
    for source in {made.source for made in proposals}:
        own = [made for made in proposals if made.source == source][: candidates.MAX_COMBINED_SPANS]
        for mask in range(1 << len(own)):
            chosen = [made for bit, made in enumerate(own) if mask >> bit & 1]
            words = [word for made in chosen for word in range(made.start, made.end)]
            if 2 <= len(chosen) <= 3 and len(set(words)) == len(words):
                found.add(tuple(sorted(chosen, key=lambda made: made.start)))
    return found


def propose(source: int, start: int, size: int, phrase: str, distance: float) -> Generated:
    return Generated(source, start, start + size, "x", phrase, distance, 4)


proposal = st.builds(
    propose,
    st.integers(0, 1),
    st.integers(0, 6),
    st.integers(1, 3),
    st.sampled_from("abc"),
    st.sampled_from([0.0, 0.5, 1.5]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(proposal, max_size=14, unique=True))
def test_combinations_are_all_those_of_the_best_proposals_in_order(proposals):
    found = candidates.combine(proposals)
    parts = [tuple(replace(part, further=()) for part in made.parts) for made in found]
    assert len(set(parts)) == len(parts)
    assert set(parts) == combine_slowly(proposals)
    matches = [made.sound_match for made in found]
    assert matches == sorted(matches, reverse=True)
    assert matches == pytest.approx([sum(part.sound_match for part in row) for row in parts])


spoken = st.lists(st.sampled_from([*WORDS, "<sil>", "42"]), max_size=6).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(spoken, min_size=1, max_size=4),
    st.lists(st.sampled_from([*WORDS]), min_size=1, max_size=3),
    st.integers(0, 5),
)
def test_what_is_made_is_new_near_and_explained(hypotheses, phrases, max_new):
    one = nbest(*hypotheses, phrases=phrases)
    made = make(max_new=max_new, max_distance=0.6).generate(one, one.phrases)
    assert sum(not hypothesis.generated.further for hypothesis in made) <= max_new
    assert sum(bool(hypothesis.generated.further) for hypothesis in made) <= GenerationSettings().max_combined
    all_words = [NORMALISE(hypothesis.text) for hypothesis in (*one.hypotheses, *made)]
    assert len(set(all_words[len(hypotheses) :])) == len(made)
    assert not set(all_words[len(hypotheses) :]) & set(all_words[: len(hypotheses)])
    for hypothesis in made:
        how = hypothesis.generated
        source = hypotheses[how.source].split()
        expected, end = [], 0
        for part in how.parts:
            assert end <= part.start
            expected += [*source[end : part.start], part.phrase]
            end = part.end
            assert " ".join(source[part.start : end]) == part.heard
            assert part.phones == len(WORDS[part.phrase])
            assert 100 * part.distance <= 60 * part.phones + 1e-9
        assert hypothesis.text.split() == [*expected, *source[end:]]


def components_of_generated(hypotheses):
    """The columns that ``Generation`` adds to a list."""
    columns = {}
    prepared = SimpleNamespace(nbest=NBestList("u", tuple(hypotheses)))
    Generation.add_columns(None, columns, SimpleNamespace(prepared=prepared))
    return columns


def test_components_say_what_sound_says_for_a_phrase():
    made = Generated(0, 0, 1, "rust", "rusk", 0.6, 4)
    found = components_of_generated([Hypothesis("rust"), Hypothesis("rusk", generated=made)])
    assert {name: values.tolist() for name, values in found.items()} == {
        "generated": [0.0, 1.0],
        "sound_match": [0.0, 1.0],
    }
    assert components_of_generated([Hypothesis("rust")]) == {}


def stands_in(words, start, end, phrase):
    """Whether a phrase stands in a text where some of its words are among those from ``start`` to ``end``."""
    flat = [(word, index) for index, part in enumerate(words) for word in part]
    for first in range(len(flat) - len(phrase) + 1):
        part = flat[first : first + len(phrase)]
        if tuple(word for word, _ in part) == phrase and any(start <= index < end for _, index in part):
            return True
    return False


parts = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)


@given(
    st.lists(parts, max_size=6), st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple))
)
def test_what_ways_cover_in_a_text_is_where_they_stand(words, ways):
    text = candidates.SpokenText(" ".join("x" * len(words)), words, [b"\1" * len(part) for part in words])
    found = text.find_known(set(ways))
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            for way in ways:
                overlaps = bool(found.get(way, 0) & text.mask(start, end))
                assert overlaps == stands_in(words, start, end, way)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(spoken, min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from([*WORDS]), st.lists(spoken, max_size=4)), min_size=1, max_size=4),
    st.sampled_from([10, 200, 200_000_000]),
)
def test_a_search_takes_no_more_steps_than_it_said(hypotheses, given_phrases, max_steps):
    phrases = tuple(Phrase(text, spellings=tuple(spellings)) for text, spellings in given_phrases)
    one, generator, steps = nbest(*hypotheses), make(max_distance=0.8), Counter()
    cut_windows, match_pairs, find = (
        sounds._cut_windows,
        sounds._match_pairs,
        sounds._find_possible,
    )
    find_known, words_with = candidates.SpokenText.find_known, candidates.SpokenText.words_with

    def count_windows(texts, boundaries, width):
        windows = cut_windows(texts, boundaries, width)
        steps["phones of windows"] += windows.phones.size
        return windows

    def count_pairs(rows, phones, bound):
        steps["pairs"] += len(rows) * len(phones)
        return find(rows, phones, bound)

    def count_cells(pairs, rows, windows, bound):
        steps["cells"] += len(pairs) * rows.shape[1] * windows.phones.shape[1]
        return match_pairs(pairs, rows, windows, bound)

    def count_ways(text, ways):
        steps["parts of texts"] += sum(len(text._flat) for _ in {len(way) for way in ways})
        return find_known(text, ways)

    def count_words(text, made, normalise):
        steps["words of proposals"] += max(1, len(text._flat))
        return words_with(text, made, normalise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sounds, "MAX_STEPS", max_steps)
        patch.setattr(sounds, "_cut_windows", count_windows)
        patch.setattr(sounds, "_find_possible", count_pairs)
        patch.setattr(sounds, "_match_pairs", count_cells)
        patch.setattr(candidates.SpokenText, "find_known", count_ways)
        patch.setattr(candidates.SpokenText, "words_with", count_words)
        made = generator.generate(one, phrases)
        estimated = generator.estimate_steps(one, phrases)
    assert steps["cells"] <= max_steps
    assert sum(steps.values()) <= estimated
    assert not made or steps["cells"]


def test_spellings_do_not_multiply_with_the_places_that_sound_like_them(monkeypatch):
    """A phrase with 2,000 spellings cost 105 s in a text of 195 words."""
    looked_up = []

    class Counted(frozenset):
        def __contains__(self, part):
            looked_up.append(part)
            return super().__contains__(part)

    find_known = candidates.SpokenText.find_known
    monkeypatch.setattr(
        candidates.SpokenText, "find_known", lambda text, ways: find_known(text, Counted(ways))
    )
    phrase = Phrase("rusk", spellings=tuple(f"rus {'ab'[i % 2] * (i // 2 + 1)}" for i in range(40)))
    one = nbest(" ".join(["rust"] * 100))
    assert make().generate(one, (phrase,))
    assert len(looked_up) <= 100 * 2  # lengths of one word and of two


def test_long_spans_and_texts_of_many_characters_are_left_alone(monkeypatch):
    for n_chars, expected in ((390, ["thornton"]), (391, [])):
        one = nbest(f"thorn {'.' * n_chars} ton", phrases=["thornton"])
        assert texts(make(max_distance=0.0), one) == expected
    one = nbest("call rust", "cat sat", "the rust " * 9, phrases=["rusk"])
    assert len(texts(make(), one)) > 1
    monkeypatch.setattr(candidates, "MAX_SEARCHED_CHARS", 30)
    assert texts(make(), one) == ["call rusk"]


def test_long_texts_and_spellings_are_not_searched(monkeypatch):
    searched = []
    find = sounds.find_similar

    def record(phones, boundaries, phrases, max_distance):
        searched.append((len(phones), [len(phrase) for phrase in phrases]))
        return find(phones, boundaries, phrases, max_distance)

    monkeypatch.setattr(candidates, "find_similar", record)
    phrases = (Phrase("rusk", spellings=("rust " * 16, "canoe" * 21)), Phrase("canoe " * 17))
    long = "at " * (candidates.MAX_SEARCHED_WORDS - 2)
    one = nbest("call rust", long, "call rust")
    assert [made.generated.source for made in make().generate(one, phrases)] == [0]
    assert searched == [(2, [4, 64])]

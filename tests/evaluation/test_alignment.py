"""sclite's alignment: fast path, table and network against slow reference implementations."""

from __future__ import annotations

import re
import time
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, InvalidList
from rescorer.evaluation.error_rate import (
    MAX_DEPTH,
    CountingSettings,
    Token,
    WordErrors,
    align_network,
    align_table,
    align_words,
    build_network,
    count_errors,
    expand_alternations,
    parse_alternations,
    words_match,
)
from rescorer.text import Normaliser

Kinds = tuple[int, int, int, int]  # substitutions, deletions, insertions, reference words

SENTENCES = st.lists(st.sampled_from(["a", "b", "c", "dd"]), max_size=9)


def kinds(counts: WordErrors) -> Kinds:
    return counts.substitutions, counts.deletions, counts.insertions, counts.reference_words


def split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def tokens(text: str) -> list[Token]:
    return [Token(word) for word in text.split()]


def sclite_alignment(reference: list[str], hypothesis: list[str]) -> Kinds:
    """The counts by the rules in sclite's source.

    It takes a pair unless a gap is cheaper, else an insertion unless a deletion is cheaper.
    """

    @cache
    def best(i: int, j: int) -> tuple[int, Kinds]:
        if not i or not j:
            return 3 * (i + j), (0, i, j, i)
        wrong = reference[i - 1] != hypothesis[j - 1]
        cost, (s, d, n, w) = best(i - 1, j - 1)
        pair = cost + 4 * wrong, (s + wrong, d, n, w + 1)
        cost, (s, d, n, w) = best(i - 1, j)
        deleted = cost + 3, (s, d + 1, n, w + 1)
        cost, (s, d, n, w) = best(i, j - 1)
        inserted = cost + 3, (s, d, n + 1, w)
        if pair[0] <= deleted[0] and pair[0] <= inserted[0]:
            return pair
        return deleted if deleted[0] < inserted[0] else inserted

    return best(len(reference), len(hypothesis))[1]


def all_cheapest(reference: list[Token], hypothesis: list[Token]) -> tuple[int, set[Kinds]]:
    """The lowest cost of any alignment, and the counts of every alignment of that cost."""

    def gap_cost(token: Token) -> int:
        return 2 if token.optional else 3

    @cache
    def best(i: int, j: int) -> tuple[int, frozenset[Kinds]]:
        ways: list[tuple[int, frozenset[Kinds]]] = []
        if i:
            cost, found = best(i - 1, j)
            gap = not reference[i - 1].optional
            ways.append(
                (
                    cost + gap_cost(reference[i - 1]),
                    frozenset((s, d + gap, n, w + 1) for s, d, n, w in found),
                )
            )
        if j:
            cost, found = best(i, j - 1)
            free = hypothesis[j - 1].optional
            more = frozenset((s, d, n + (not free), w + free) for s, d, n, w in found)
            ways.append((cost + gap_cost(hypothesis[j - 1]), more))
        if i and j:
            cost, found = best(i - 1, j - 1)
            wrong = not words_match(reference[i - 1], hypothesis[j - 1])
            ways.append((cost + 4 * wrong, frozenset((s + wrong, d, n, w + 1) for s, d, n, w in found)))
        if not ways:
            return 0, frozenset({(0, 0, 0, 0)})
        lowest = min(cost for cost, _ in ways)
        return lowest, frozenset().union(*(found for cost, found in ways if cost == lowest))

    cost, found = best(len(reference), len(hypothesis))
    return cost, set(found)


MORE_THAN_FEWEST = ("d a b a c", "b c d a", (0, 3, 2, 5))


@given(SENTENCES, SENTENCES)
def test_all_implementations_agree(reference, hypothesis):
    expected = sclite_alignment(reference, hypothesis)
    assert kinds(align_words(reference, hypothesis)) == expected
    assert kinds(align_table(reference, hypothesis)) == expected
    network = build_network(reference, tokens)
    assert kinds(align_network(network, [Token(word) for word in hypothesis])) == expected


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("a b c", "a b c", (0, 0, 0, 3)),
        ("", "", (0, 0, 0, 0)),
        ("", "a", (0, 0, 1, 0)),
        ("a b", "", (0, 2, 0, 2)),
        ("a x y z b", "a u v w b", (3, 0, 0, 5)),
        ("a b c", "c x y", (3, 0, 0, 3)),  # costs as much as two deletions and two insertions
        ("a b c d", "b x c y", (1, 1, 1, 4)),
        ("a b c d", "x a y b", (0, 2, 2, 4)),
        MORE_THAN_FEWEST,
    ],
)
def test_splits_errors_into_kinds(reference, hypothesis, expected):
    assert kinds(align_words(reference.split(), hypothesis.split())) == expected


def test_sclite_can_count_more_errors_than_the_minimum():
    reference, hypothesis, expected = MORE_THAN_FEWEST
    assert count_errors(reference.split(), hypothesis.split()).errors == sum(expected[:3]) - 1


WORDS = st.sampled_from(["a", "b", "ab", "(a)", "(b)", "a-", "-b", "(ab-)"])
PARTS = st.recursive(
    WORDS | st.just("@"),
    lambda parts: st.lists(st.lists(parts, min_size=1, max_size=2).map(" ".join), min_size=1, max_size=3).map(
        lambda ways: "{ " + " / ".join(ways) + " }"
    ),
    max_leaves=5,
)
EVERYTHING = CountingSettings("sclite", optional_words=True, fragments=True)


def parse_marks(word: str) -> Token:
    """Parse the marks of a word."""
    optional = word.startswith("(")
    text = word.strip("()")
    return Token(text, optional, text.endswith("-") or (text.startswith("-") and not optional))


TEXTS = st.lists(PARTS, max_size=4).map(" ".join)


def read_tokens(text: str) -> list[list[Token]]:
    """All readings of a text; sclite's null word stands for no word outside braces too."""
    return [[parse_marks(word) for word in reading if word != "@"] for reading in expand_alternations(text)]


@given(TEXTS, TEXTS)
def test_networks_match_brute_force(reference, hypothesis):
    pairs = product(read_tokens(reference), read_tokens(hypothesis))
    cheapest = [all_cheapest(said, heard) for said, heard in pairs]
    lowest = min(cost for cost, _ in cheapest)
    possible = set().union(*(found for cost, found in cheapest if cost == lowest))
    assert kinds(EVERYTHING.counter_for(reference, split)(hypothesis)) in possible


@given(TEXTS, TEXTS)
def test_fewest_errors_are_those_of_the_closest_readings(reference, hypothesis):
    pairs = product(expand_alternations(reference), expand_alternations(hypothesis))
    expected = min((count_errors(said, heard) for said, heard in pairs), key=lambda counts: counts.errors)
    found = CountingSettings().counter_for(reference, split)(hypothesis)
    assert (found.errors, found.reference_words) == (expected.errors, expected.reference_words)


@given(TEXTS)
def test_a_text_matches_itself_and_each_of_its_readings(text):
    for method in ("levenshtein", "sclite"):
        for reading in expand_alternations(text):
            for pair in ((text, text), (text, " ".join(reading)), (" ".join(reading), text)):
                assert CountingSettings(method).counter_for(pair[0], split)(pair[1]).errors == 0


@pytest.mark.parametrize("method", ["levenshtein", "sclite"])
@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("a { b / @ } c", "a {b / @} c", (0, 0, 0)),
        ("a c", "a { b / @ } c", (0, 0, 0)),
        ("a b c", "a { x / { b / y } } c", (0, 0, 0)),
        ("so is the sea", "s {o/is} is {th/t} sees", (3, 0, 1)),
        ("a b", "{ a / b } { c d / @ }", (0, 1, 0)),
    ],
)
def test_counts_alternatives_in_hypotheses(method, reference, hypothesis, expected):
    assert kinds(CountingSettings(method).counter_for(reference, split)(hypothesis))[:3] == expected


def test_null_word_outside_braces_is_sclites():
    assert kinds(CountingSettings("sclite").counter_for("a b", split)("a @ b"))[:3] == (0, 0, 0)
    assert kinds(CountingSettings().counter_for("a @ b", split)("a b"))[:3] == (0, 1, 0)


BUCKWALTER = "{lkbyr ktb }l wqA}l"


@pytest.mark.parametrize("method", ["levenshtein", "sclite"])
def test_braces_that_are_letters_lose_nothing(method):
    """Braces without a slash that touch letters are letters; alone or crossed, they are so on request."""
    count = CountingSettings(method).counter_for(BUCKWALTER, split, "u1")
    assert (count(BUCKWALTER).errors, count(BUCKWALTER.replace("{", "A")).errors) == (0, 1)
    assert count(BUCKWALTER.replace("{", "").replace("}", "")).errors == 3
    with pytest.raises(InvalidList, match=r"list 'u1', text: .*: '{lrjl'; .*--alternations off"):
        count("{lrjl")
    off = CountingSettings(method, alternations=False)
    for text in ("{lrjl", "}", "{ a / b }", "a @ b", "}}{{ /"):
        assert off.counter_for(text, split)(text).errors == 0
        assert off.counter_for(text, split)("x " + text).errors == 1
        assert off.counter_for(text, split)("").reference_words == len(text.split())


def test_names_malformed_choices_of_hypotheses():
    count = CountingSettings().counter_for("a", split, "u1")
    for text, named in (("x { a / b", "{ a / b"), ("a / b } c", "a / b }"), ("{ a / { b }", "{ a / { b }")):
        with pytest.raises(InvalidList, match=f"list 'u1', text: .*{re.escape(repr(named))}; "):
            count(text)
    with pytest.raises(InvalidList, match="list 'u1', text: alternations give more than 256 readings"):
        count("{ a / b } " * 9)


@given(st.text("{}/ aw", max_size=12))
def test_every_character_of_a_text_without_choices_is_kept(text):
    """A text in which braces are no choices has itself as its only reading."""
    try:
        readings = expand_alternations(text)
    except InvalidList:
        return
    if "/" not in text and "{ " not in text:
        assert readings == (split(text),)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("{ uh / @ } a", "a", (0, 0, 0, 1)),
        ("{ uh / @ } a", "uh a", (0, 0, 0, 2)),
        ("{ uh / @ } a", "b a", (0, 0, 1, 1)),
        ("{ uh / @ } a", "b", (1, 0, 0, 1)),
        ("{ a b c / d } e", "d", (0, 1, 0, 2)),
        ("{ { -uh / @ } / um } a", "um a", (0, 0, 0, 2)),
        ("{wanna/want to}go", "want to go", (0, 0, 0, 3)),
        ("{ / a / }", "", (0, 1, 0, 1)),
        ("@ a", "a", (0, 0, 0, 1)),
        ("(uh) a", "a", (0, 0, 0, 2)),
        ("(uh) a", "uh a", (0, 0, 0, 2)),
        ("(uh) a", "um a", (1, 0, 0, 2)),
        ("wo- -rd x", "word word x", (0, 0, 0, 3)),
        ("word - x", "wo- - x", (0, 0, 0, 3)),
        ("(wo-) x", "would x", (0, 0, 0, 2)),
    ],
)
def test_honours_transcription_marks(reference, hypothesis, expected):
    assert kinds(EVERYTHING.counter_for(reference, split)(hypothesis)) == expected


def test_ignores_marks_by_default():
    plain = CountingSettings("sclite")
    assert kinds(plain.counter_for("(uh) a", split)("a")) == (0, 1, 0, 2)
    assert kinds(plain.counter_for("wo- a", split)("word a")) == (1, 0, 0, 2)


def test_normalises_words_without_their_marks():
    words = Normaliser().normalise
    assert kinds(EVERYTHING.counter_for("(Uh) I wo- { [NOISE] / We'll } go", words)("i word GO")) == (
        0,
        0,
        0,
        4,
    )
    assert kinds(CountingSettings("sclite").counter_for("{ [NOISE] / Uh } { <sil> } go", words)("go")) == (
        0,
        0,
        0,
        1,
    )
    assert kinds(EVERYTHING.counter_for("- <sil>-", words)("")) == (0, 0, 0, 0)


@pytest.mark.parametrize("method", ["levenshtein", "sclite"])
def test_counts_characters_without_spaces(method):
    counting = CountingSettings(method, unit="character")
    assert counting.unit == "character"
    assert kinds(counting.counter_for("{ ab c / 你好 }", split)("你 吗")) == (1, 0, 0, 2)
    assert kinds(counting.counter_for("ab c", split)("a b c d")) == (0, 0, 1, 3)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "wer"},
        {"optional_words": True},
        {"fragments": True},
        {"method": "sclite", "unit": "character", "fragments": True},
    ],
)
def test_rejects_contradicting_settings(settings):
    with pytest.raises(ConfigError):
        CountingSettings(**settings)


def test_rejects_malformed_references():
    with pytest.raises(InvalidList, match=r'list \'u1\', reference: "}" without'):
        CountingSettings("sclite").counter_for("a }", split, "u1")
    with pytest.raises(InvalidList, match=f"more than {MAX_DEPTH} deep"):
        parse_alternations("{ " * (MAX_DEPTH + 1))


def test_aligns_many_alternations_without_expanding_them():
    assert kinds(CountingSettings("sclite").counter_for("{ a / b / @ } " * 200, split)("b " * 150)) == (
        0,
        0,
        0,
        150,
    )


@pytest.mark.slow
def test_aligns_100_000_pairs_of_20_words_within_seconds():
    """Takes 3 s on an idle machine; the limit is generous for busy ones."""
    reference = [f"w{number}" for number in range(20)]
    hypothesis = ["x", *reference[1:9], "y", "z", *reference[10:18], "u"]
    start = time.process_time()
    for _ in range(100_000):
        align_words(reference, hypothesis)
    assert time.process_time() - start < 6

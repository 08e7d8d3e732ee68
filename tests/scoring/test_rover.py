"""Votes of several recognisers, word by word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import ConfigError
from rescorer.consensus import RoverSettings, SystemList, build_voting_network, combine, vote
from rescorer.consensus import build_confusion_network as build_network_of_list
from rescorer.ranking import best_first, posteriors
from tests.scoring.test_distances import LISTS

TEXTS = st.lists(st.sampled_from("abc"), max_size=5).map(tuple)


def single(text: str) -> SystemList:
    """A system with a single hypothesis."""
    return SystemList((tuple(text.split()),), np.zeros(1))


def texts_of(words) -> str:
    return " ".join(word.word for word in words)


def plain_vote(slots, null_weight):
    """Collect the candidates of each slot, and take the first with the most votes."""
    words = []
    for slot in slots:
        candidates = [
            (round(share * (null_weight if word == "" else 1.0), 4), word)
            for word, share in slot.votes.items()
        ]
        most = max(votes for votes, _ in candidates)
        winner = next(word for votes, word in candidates if votes == most)
        if winner:
            words.append(winner)
    return words


@settings(max_examples=50)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.data(), st.sampled_from([0.5, 1.0, 2.0]))
def test_agrees_with_a_plain_vote(texts, data, null_weight):
    weights = tuple(data.draw(st.floats(0.1, 10)) for _ in texts)
    rover = RoverSettings(weights, (1.0,) * len(texts), null_weight)
    systems = [SystemList((words,), np.zeros(1)) for words in texts]
    slots = build_voting_network(systems, rover)
    assert all(sum(slot.votes.values()) == pytest.approx(1.0) for slot in slots)
    found = combine(systems, rover)
    assert [word.word for word in found] == plain_vote(slots, null_weight)
    assert all(0 < word.posterior <= 1 for word in found)


@given(st.lists(TEXTS, min_size=2, max_size=4), st.integers(0, 3), st.floats(1e-3, 1e3))
def test_a_system_with_most_of_the_weight_decides(texts, number, scale):
    number %= len(texts)
    weights = tuple(scale * (0.6 if i == number else 0.4 / (len(texts) - 1)) for i in range(len(texts)))
    systems = [SystemList((words,), np.zeros(1)) for words in texts]
    found = combine(systems, RoverSettings(weights, (1.0,) * len(texts)))
    assert tuple(word.word for word in found) == texts[number]


@given(LISTS.flatmap(lambda words: st.tuples(
    st.just(words), st.tuples(*[st.floats(-30, 30)] * len(words))
)), st.floats(0.5, 20))  # fmt: skip
def test_one_system_decides_like_the_consensus_of_its_list(drawn, temperature):
    words, totals = drawn[0], np.array(drawn[1])
    order = best_first(totals)
    shares = posteriors(totals[order], temperature)
    network = build_network_of_list([words[i] for i in order], shares.tolist())
    found = combine([SystemList(tuple(words), totals)], RoverSettings((2.0,), (temperature,)))
    assert [word.word for word in found] == [word.word for word in network.consensus()]


def test_two_of_three_systems_outvote_the_third_in_every_slot():
    systems = [single("the cat sat"), single("the bat sat on"), single("a cat sat on")]
    equal = RoverSettings((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    found = combine(systems, equal)
    assert texts_of(found) == "the cat sat on"
    assert [word.posterior for word in found] == pytest.approx([2 / 3, 2 / 3, 1, 2 / 3])


def test_null_weight_decides_about_words_that_some_systems_lack():
    systems = [single("the cat"), single("the black cat"), single("the cat")]
    weights, temperatures = (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)
    assert texts_of(combine(systems, RoverSettings(weights, temperatures))) == "the cat"
    assert texts_of(combine(systems, RoverSettings(weights, temperatures, 0.4))) == "the black cat"


def test_temperature_evens_out_the_votes_of_a_list():
    sure = SystemList((("a",), ("b",)), np.array([0.0, -4.0]))
    systems = [sure, single("b")]
    assert texts_of(combine(systems, RoverSettings((0.55, 0.45), (1.0, 1.0)))) == "a"
    assert texts_of(combine(systems, RoverSettings((0.55, 0.45), (100.0, 1.0)))) == "b"


@pytest.mark.parametrize("weight", [1e-320, 1e300, 1.7e308])
def test_only_the_ratios_of_the_weights_matter(weight):
    systems = [single("the cat"), single("the hat")]
    found = combine(systems, RoverSettings((weight, weight), (1.0, 1.0), 1e308))
    assert [(word.word, word.posterior) for word in found] == [("the", 1.0), ("cat", 0.5)]
    assert {type(word.posterior) for word in found} == {float}


def test_nothing_said():
    assert combine([single(""), single("")], RoverSettings((1.0, 1.0), (1.0, 1.0))) == ()
    assert vote([]) == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1.0,), (1.0, 1.0)), "1 weights and 2 temperatures; expected one of each per system"),
        (((0.0, 1.0), (1.0, 1.0)), "weights: 0.0; expected finite numbers above 0"),
        (((1.0, 1.0), (1.0, float("inf"))), "temperatures: inf; expected finite numbers above 0"),
        (((1.0, 1.0), (1.0, 1.0), float("nan")), "null_weight: nan; expected finite numbers above 0"),
    ],
)
def test_rejects_invalid_settings(arguments, message):
    with pytest.raises(ConfigError, match=message):
        RoverSettings(*arguments)

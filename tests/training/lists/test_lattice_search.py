"""Check the search of lattices against the enumeration of all paths."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import LimitExceeded
from rescorer.formats.lattices import Arc, Lattice
from rescorer_training.lists.text import END, START, Scales, find_candidates

SCALES = Scales(lm=2.5, word_penalty=-0.4)


class HashedModel:
    """A trigram model with arbitrary but fixed scores."""

    def log_prob(self, ngram: tuple[str, ...]) -> float:
        assert 2 <= len(ngram) <= 3
        assert START not in ngram[1:]
        return -0.25 * (sum(ord(c) * (7 + i) for i, word in enumerate(ngram) for c in word) % 40)


def score_sentence(words: tuple[str, ...]) -> float:
    sentence = (START, *words, END)
    return sum(HashedModel().log_prob(sentence[max(i - 2, 0) : i + 1]) for i in range(1, len(sentence)))


def enumerate_sentences(lattice: Lattice) -> dict[tuple[str, ...], float]:
    """The best acoustic score of each word sequence."""
    best: dict[tuple[str, ...], float] = {}
    paths = [(lattice.start, (), 0.0)]
    while paths:
        node, words, acoustic = paths.pop()
        if node == lattice.end:
            best[words] = max(best.get(words, -math.inf), acoustic)
        for target, word, (score,), _ in lattice.arcs[node]:
            paths.append((target, (*words, word) if word else words, acoustic + score))
    return best


@st.composite
def random_lattices(draw: st.DrawFn) -> Lattice:
    """Draw a lattice whose arcs lead from higher to lower nodes; the end may be unreachable."""
    n = draw(st.integers(2, 7))
    inner = st.lists(st.sampled_from(["", "pear", "pair", "tree"]), min_size=n - 2, max_size=n - 2)
    scores = st.one_of(st.none(), st.integers(-40, 5))  # densities can be positive
    words = ("", *draw(inner), "")
    links = []
    for node in range(n):
        drawn = [draw(scores) for _ in range(node)]
        present = ((target, score) for target, score in enumerate(drawn) if score is not None)
        links.append(tuple(Arc(target, words[target], (float(score),)) for target, score in present))
    return Lattice(tuple(links), start=n - 1, end=0)


@given(lattice=random_lattices(), depth=st.integers(1, 40))
def test_search_agrees_with_enumeration(lattice: Lattice, depth: int) -> None:
    expected = enumerate_sentences(lattice)
    totals = {
        words: acoustic + SCALES.lm * score_sentence(words) + SCALES.word_penalty * (len(words) + 1)
        for words, acoustic in expected.items()
    }
    candidates = find_candidates(lattice, HashedModel(), SCALES, depth)
    found = [candidate.total(SCALES) for candidate in candidates]
    assert found == pytest.approx(sorted(totals.values(), reverse=True)[:depth])
    assert len({candidate.words for candidate in candidates}) == len(candidates)
    for candidate in candidates:
        assert candidate.acoustic == pytest.approx(expected[candidate.words])
        assert candidate.lm == pytest.approx(score_sentence(candidate.words))


@given(lattice=random_lattices())
def test_a_beam_only_leaves_out_paths(lattice: Lattice) -> None:
    exact = {candidate.words: candidate for candidate in find_candidates(lattice, HashedModel(), SCALES, 999)}
    assert find_candidates(lattice, HashedModel(), SCALES, 999, beam=1e4) == list(exact.values())
    for candidate in find_candidates(lattice, HashedModel(), SCALES, 999, beam=20.0):
        assert candidate.total(SCALES) <= exact[candidate.words].total(SCALES) + 1e-9


def test_limits_the_number_of_paths() -> None:
    arcs = tuple((Arc(i + 1, "a", (0.0,)), Arc(i + 1, "b", (0.0,))) for i in range(8))
    lattice = Lattice((*arcs, (Arc(9, "", (0.0,)),), ()), start=0, end=9)
    with pytest.raises(LimitExceeded, match="more than 20 partial paths"):
        find_candidates(lattice, HashedModel(), SCALES, 100, max_paths=20)

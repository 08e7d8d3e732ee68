"""Owns the LM's part in a lattice's n-best list: its scores on the links, and the search with them.

The first pass is acoustic + ``LM_SCALE`` · LM + ``WORD_INSERTION`` · words, all in nats.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import kenlm

from rescorer.formats.lattices import lattice as search
from rescorer.formats.lattices.lattice import Lattice, Step

LM_SCALE = 9.5
"""PocketSphinx's own scale when it searches a lattice (``bestpathlw``)."""
WORD_INSERTION = math.log(0.65)
"""PocketSphinx's ``wip``, in nats; paid by each word and by the end of the sentence."""
LN_10 = math.log(10.0)  # kenlm speaks log10
END = "</s>"
Place = tuple[int, kenlm.State]
"""A node and the LM's state after its word: all that what follows depends on."""


class Candidate(NamedTuple):
    """A word sequence on its way through a lattice; ``</s>`` closes it."""

    words: tuple[str, ...]
    acoustic: float
    """Of the best path with these words, in nats."""
    lm: float
    """In nats, unscaled."""

    @property
    def total(self) -> float:
        """The first pass's score, by which a list is ordered."""
        return self.acoustic + LM_SCALE * self.lm + WORD_INSERTION * len(self.words)


def with_lm(lattice: Lattice, model: kenlm.Model) -> dict[Place, list[Step[Place]]]:
    """Every place of the lattice and the steps that leave it, each place before all that it leads to."""
    begin = kenlm.State()
    model.BeginSentenceWrite(begin)
    states: defaultdict[int, dict[kenlm.State, None]] = defaultdict(dict, {lattice.start: {begin: None}})
    steps: dict[Place, list[Step[Place]]] = {}
    for node in lattice.topological_order():
        for state in states[node]:
            steps[node, state] = []
            for link in lattice.links[node]:
                word = END if link.target == lattice.end else link.word
                lm, after = advance(model, state, word)
                states[link.target][after] = None
                (acoustic,) = link.scores
                total = acoustic + LM_SCALE * lm + WORD_INSERTION * bool(word)
                steps[node, state].append(Step((link.target, after), word, total, (acoustic, lm)))
    return steps


def advance(model: kenlm.Model, state: kenlm.State, word: str) -> tuple[float, kenlm.State]:
    """ln P of a word and the state after it; a node without a word changes nothing."""
    if not word:
        return 0.0, state
    after = kenlm.State()
    return model.BaseScore(state, word, after) * LN_10, after


def n_best(lattice: Lattice, model: kenlm.Model, depth: int) -> list[Candidate]:
    """The ``depth`` best distinct word sequences, best first; paths with the same words count as the best
    of them."""
    steps = with_lm(lattice, model)
    found = search.search_n_best(steps, next(iter(steps)), lambda place: place[0] == lattice.end, depth)
    candidates = (Candidate(path.words, *path.scores) for path in found)
    return sorted(candidates, key=lambda each: (-each.total, each.words))

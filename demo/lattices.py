"""Score lattice arcs with an n-gram model and find the n best word sequences.

The first-pass score is acoustic + ``LM_SCALE`` · LM + ``WORD_INSERTION_PENALTY`` · words, all in nats.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from rescorer.formats import lattices
from rescorer.formats.lattices import Lattice, Step

if TYPE_CHECKING:
    import kenlm

LM_SCALE = 9.5
"""Language model scale that PocketSphinx uses when it searches a lattice (``bestpathlw``)."""
WORD_INSERTION_PENALTY = math.log(0.65)
"""PocketSphinx's ``wip`` in nats; added per word and for the end of the sentence."""
LN_10 = math.log(10.0)  # kenlm's scores are log10
END = "</s>"
SearchState: TypeAlias = "tuple[int, kenlm.State]"
"""A node and the LM state after its word; the scores of all continuations depend only on these two."""


class Candidate(NamedTuple):
    """A word sequence of a lattice, including the final ``</s>``."""

    words: tuple[str, ...]
    acoustic: float
    """Acoustic score of the best path with these words, in nats."""
    lm: float
    """Language model score in nats, unscaled."""

    @property
    def total(self) -> float:
        """First-pass score, which determines the order of a list."""
        return self.acoustic + LM_SCALE * self.lm + WORD_INSERTION_PENALTY * len(self.words)


def expand_with_lm(lattice: Lattice, model: kenlm.Model) -> dict[SearchState, list[Step[SearchState]]]:
    """Map each search state to the steps that leave it, in topological order."""
    from kenlm import State

    sentence_start = State()
    model.BeginSentenceWrite(sentence_start)
    states: defaultdict[int, dict[kenlm.State, None]] = defaultdict(
        dict, {lattice.start: {sentence_start: None}}
    )
    steps: dict[SearchState, list[Step[SearchState]]] = {}
    for node in lattice.topological_order():
        for state in states[node]:
            steps[node, state] = []
            for link in lattice.arcs[node]:
                word = END if link.target == lattice.end else link.word
                lm, next_state = advance(model, state, word)
                states[link.target][next_state] = None
                (acoustic,) = link.scores
                total = acoustic + LM_SCALE * lm + WORD_INSERTION_PENALTY * bool(word)
                steps[node, state].append(Step((link.target, next_state), word, total, (acoustic, lm)))
    return steps


def advance(model: kenlm.Model, state: kenlm.State, word: str) -> tuple[float, kenlm.State]:
    """Compute ln P(word) and the next LM state; an empty word has score 0 and keeps the state."""
    if not word:
        return 0.0, state
    next_state = type(state)()
    return model.BaseScore(state, word, next_state) * LN_10, next_state


def n_best(lattice: Lattice, model: kenlm.Model, depth: int) -> list[Candidate]:
    """Find the ``depth`` best distinct word sequences, best first.

    Of several paths with the same words, only the best counts.
    """
    steps = expand_with_lm(lattice, model)
    found = lattices.search_n_best(steps, next(iter(steps)), lambda state: state[0] == lattice.end, depth)
    candidates = (Candidate(path.words, *path.scores) for path in found)
    return sorted(candidates, key=lambda candidate: (-candidate.total, candidate.words))

"""Score lattice arcs with an n-gram model and find the n best word sequences.

The first-pass score is acoustic + ``LM_SCALE`` · LM + ``WORD_INSERTION_PENALTY`` · words, all in nats.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from rescorer.formats.lattices import Arc, Lattice, find_best_paths

if TYPE_CHECKING:
    import kenlm

LM_SCALE = 9.5
"""Language model scale that PocketSphinx uses when it searches a lattice (``bestpathlw``)."""
WORD_INSERTION_PENALTY = math.log(0.65)
"""PocketSphinx's ``wip`` in nats; added per word and for the end of the sentence."""
LN_10 = math.log(10.0)  # kenlm's scores are log10
END = "</s>"
STREAMS = ("acoustic", "lm")
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


def expand_with_lm(lattice: Lattice, model: kenlm.Model) -> Lattice:
    """Divide the nodes of a lattice by LM states, so that each arc has an LM score after its acoustic one."""
    from kenlm import State

    sentence_start = State()
    model.BeginSentenceWrite(sentence_start)
    numbers: dict[SearchState, int] = {(lattice.start, sentence_start): 0}
    states: defaultdict[int, list[kenlm.State]] = defaultdict(list, {lattice.start: [sentence_start]})
    end = 0 if lattice.start == lattice.end else 1  # all states at the end are one node
    arcs: dict[int, tuple[Arc, ...]] = {end: ()}
    for node in lattice.topological_order():
        for state in states[node]:
            outgoing = []
            for arc in lattice.arcs[node]:
                is_last = arc.target == lattice.end
                word = END if is_last else arc.word
                lm, after = advance(model, state, word)
                if not is_last and (arc.target, after) not in numbers:
                    numbers[arc.target, after] = len(numbers) + end
                    states[arc.target].append(after)
                target = end if is_last else numbers[arc.target, after]
                outgoing.append(Arc(target, word, (*arc.scores, lm)))
            arcs[numbers[node, state]] = tuple(outgoing)
    return Lattice(tuple(arcs[number] for number in range(len(numbers) + end)), 0, end, STREAMS)


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
    scales = dict(zip(STREAMS, (1.0, LM_SCALE), strict=True))
    expanded = expand_with_lm(lattice, model)
    try:
        found = find_best_paths(expanded, scales, WORD_INSERTION_PENALTY, depth)
    except ValueError:  # no path leads to the end
        return []
    candidates = (Candidate(path.words, *path.scores) for path in found)
    return sorted(candidates, key=lambda candidate: (-candidate.total, candidate.words))

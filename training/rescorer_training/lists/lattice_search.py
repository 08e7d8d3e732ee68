"""Score the arcs of a lattice with a trigram model, and find its n best word sequences.

The total is acoustic + scale · LM + penalty · (words + 1), in nats, like the one that PocketSphinx maximises
when it searches a lattice. Nodes are split by the last two words before them; for each such state the best
completion is computed with array operations, and A* follows it (see ``rescorer.formats.lattices.lattice``
for the same search over general lattices).
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple, Protocol

import numpy as np

from rescorer.errors import LimitExceeded
from rescorer.formats.lattices.lattice import ESTIMATE_DECIMALS, MAX_PATHS, Lattice

START, END = "<s>", "</s>"
NO_WORD = 0
"""Number of the missing word before the start of a sentence."""


class TrigramModel(Protocol):
    """A language model with at most two words of history."""

    def log_prob(self, ngram: tuple[str, ...]) -> float:
        """ln P of the last word after the others, of which there are one or two."""


class Scales(NamedTuple):
    """Weights of the total."""

    lm: float
    word_penalty: float
    """In nats; added per word and for the end of the sentence."""


class Candidate(NamedTuple):
    """A word sequence of a lattice."""

    words: tuple[str, ...]
    acoustic: float
    """Acoustic score of the best path with these words, in nats."""
    lm: float
    """Language model score in nats, with the end of the sentence, unscaled."""

    def total(self, scales: Scales) -> float:
        """First-pass score, which determines the order of a list."""
        return self.acoustic + scales.lm * self.lm + scales.word_penalty * (len(self.words) + 1)


class _Transition(NamedTuple):
    """An arc, with one entry in each array per history of the node that it leaves."""

    target: int
    word: str
    """Empty for fillers and at the end."""
    acoustic: float
    penalty: float
    lm: np.ndarray
    """(H,) float64."""
    histories: np.ndarray
    """(H,) int64, index of the resulting history among those of the target, or their number if it was left
    out."""


class ExpandedLattice:
    """A lattice whose nodes are split by their histories."""

    def __init__(self, lattice: Lattice, model: TrigramModel, scales: Scales, beam: float = math.inf) -> None:
        """Score all arcs.

        Args:
            beam: histories of a node are left out if their best total is lower by more nats than that of the
                node's best history.

        Raises:
            ValueError: the lattice has a cycle.
        """
        self.start, self.end, self.scales = lattice.start, lattice.end, scales
        self._model, self._beam = model, beam
        self._order = lattice.topological_order()
        words = {arc.word for node in self._order for arc in lattice.arcs[node]} - {"", END}
        self._vocabulary = ["", START, END, *sorted(words)]
        self._ids = {word: number for number, word in enumerate(self._vocabulary)}
        self._log_probs: dict[int, float] = {}
        self.transitions = self._expand(lattice)
        self.completions = self._complete()

    def _expand(self, lattice: Lattice) -> dict[int, list[_Transition]]:
        size = len(self._vocabulary)
        first = np.array([NO_WORD * size + self._ids[START]])
        reached: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {self.start: [(first, np.zeros(1))]}
        histories: dict[int, np.ndarray] = {}
        unlinked: dict[int, list[tuple[_Transition, np.ndarray]]] = {}
        for node in self._order:
            pairs, totals = self._merge(reached.pop(node))
            histories[node], unlinked[node] = pairs, []
            for arc in lattice.arcs[node]:
                heard = END if arc.target == lattice.end else arc.word
                number = self._ids[heard]
                after = (pairs % size) * size + number if heard else pairs
                lm = self._query(pairs * size + number) if heard else np.zeros(len(pairs))
                penalty = self.scales.word_penalty if heard else 0.0
                through = totals + (arc.scores[0] + penalty) + self.scales.lm * lm
                reached.setdefault(arc.target, []).append((after, through))
                word = "" if heard == END else heard
                step = _Transition(arc.target, word, arc.scores[0], penalty, lm, after)
                unlinked[node].append((step, after))
        self._n_histories = {node: len(pairs) for node, pairs in histories.items()}
        return {
            node: [step._replace(histories=_find(histories[step.target], after)) for step, after in steps]
            for node, steps in unlinked.items()
        }

    def _merge(self, arriving: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """The distinct histories that reach a node, with their best totals, without those below the beam."""
        codes, inverse = np.unique(np.concatenate([pairs for pairs, _ in arriving]), return_inverse=True)
        totals = np.full(len(codes), -math.inf)
        np.maximum.at(totals, inverse, np.concatenate([part for _, part in arriving]))
        kept = totals >= totals.max() - self._beam
        return codes[kept], totals[kept]

    def _query(self, ngrams: np.ndarray) -> np.ndarray:
        """Log-probabilities of trigrams of word numbers; the model is asked for each of them once."""
        known, size = self._log_probs, len(self._vocabulary)
        codes = ngrams.tolist()
        for code in codes:
            if code not in known:
                numbers = (code // (size * size), code // size % size, code % size)
                known[code] = self._model.log_prob(
                    tuple(self._vocabulary[number] for number in numbers if number != NO_WORD)
                )
        return np.array([known[code] for code in codes])

    def _complete(self) -> dict[int, np.ndarray]:
        """The best total from each history of each node to the end; minus infinity if there is no path."""
        completions: dict[int, np.ndarray] = {}
        for node in reversed(self._order):
            best = np.full(self._n_histories[node] + 1, -math.inf)  # the last: histories that were left out
            best[:-1] = 0.0 if node == self.end else -math.inf
            for step in self.transitions[node]:
                through = completions[step.target][step.histories] + self.scales.lm * step.lm
                np.maximum(best[:-1], through + (step.acoustic + step.penalty), out=best[:-1])
            completions[node] = best
        return completions


def _find(histories: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Indices in a sorted array; its length for what is not in it."""
    index = np.searchsorted(histories, wanted)
    found = histories[np.minimum(index, len(histories) - 1)] == wanted
    return np.where(found, index, len(histories))


def find_candidates(
    lattice: Lattice,
    model: TrigramModel,
    scales: Scales,
    depth: int,
    *,
    beam: float = math.inf,
    max_paths: int = MAX_PATHS,
) -> list[Candidate]:
    """Find the ``depth`` best distinct word sequences, best first.

    Of paths with the same words, the best counts. The list is empty if no path leads to the end. Without a
    beam, the search is exact.

    Raises:
        ValueError: the lattice has a cycle.
        LimitExceeded: the search needs more than ``max_paths`` partial paths.
    """
    graph = ExpandedLattice(lattice, model, scales, beam)
    first = graph.completions[graph.start][0]
    queue: list[tuple[float, int, tuple[str, ...], float, float, float, int, int]] = []
    heapq.heappush(queue, (-first, 0, (), 0.0, 0.0, 0.0, graph.start, 0))
    visited: set[tuple[int, int, tuple[str, ...]]] = set()
    found: list[Candidate] = []
    pushed = 0  # settles ties, newest first
    while queue and len(found) < depth:
        estimate, _, words, acoustic, lm, total, node, history = heapq.heappop(queue)
        if estimate == math.inf:
            break
        if (node, history, words) in visited:
            continue
        visited.add((node, history, words))
        if node == graph.end:
            found.append(Candidate(words, acoustic, lm))
            continue
        for step in graph.transitions[node]:
            target, after, lm_step = step.target, int(step.histories[history]), float(step.lm[history])
            longer = total + step.acoustic + step.penalty + scales.lm * lm_step
            estimate = longer + float(graph.completions[target][after])
            if estimate == -math.inf:
                continue
            pushed += 1
            if pushed > max_paths:
                raise LimitExceeded(f"the search needs more than {max_paths} partial paths")
            path = (*words, step.word) if step.word else words
            scores = acoustic + step.acoustic, lm + lm_step, longer
            priority = -round(estimate, ESTIMATE_DECIMALS)
            heapq.heappush(queue, (priority, -pushed, path, *scores, target, after))
    return sorted(found, key=lambda candidate: (-candidate.total(scales), candidate.words))

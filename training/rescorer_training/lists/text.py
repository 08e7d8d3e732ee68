"""Make training lists from text alone, in imitation of real lists; and search lattices with a trigram model.

A made list takes the pattern of a real list of about the same length. The pattern says, for each word of the
reference, which hypotheses are right there and which are wrong. So made lists resemble real ones in their
lengths, their numbers of errors, and in how much their hypotheses have in common.

Wrong words are drawn. After the words c, the word h replaces the word r with a probability proportional to
exp(−a · phone cost(r, h) + b · ln P(h | c)), where a and b are fitted to the substitutions of real lists.

Scores are those of the real list, corrected for the other words by a linear model that is fitted to real
lists. It predicts the scores of a hypothesis from six facts: its words, its characters, ln P by a language
model, its substitutions, deletions and insertions. Scores and facts are centred within each list, because
what all hypotheses of a list have in common does not rank them.

The total of a path through a lattice is acoustic + scale · LM + penalty · (words + 1), in nats, like the one
that PocketSphinx maximises. Nodes are split by the last two words before them. For each of these states, the
best completion is computed with array operations, and an A* search follows the completions (see
``rescorer.formats.lattices`` for the same search over general lattices).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from rescorer.errors import ConfigError, LimitExceeded
from rescorer.formats.lattices import ESTIMATE_DECIMALS, MAX_PATHS, Lattice
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList
from rescorer_training.lists.patterns import (
    ContextModel,
    Pattern,
    PhoneCosts,
    Pronunciations,
    Sentence,
    Words,
    apply_pattern,
    find_pattern,
)

START, END = "<s>", "</s>"
NO_WORD = 0
"""Number that stands for the missing word before the start of a sentence."""


class TrigramModel(Protocol):
    """A language model with at most two words of history."""

    def log_prob(self, ngram: tuple[str, ...]) -> float:
        """Return ln P of the last word after the other words, which are one or two."""


class Scales(NamedTuple):
    """Weights of a total score."""

    lm: float
    word_penalty: float
    """Score in nats that is added for each word and for the end of the sentence."""


class Candidate(NamedTuple):
    """A word sequence of a lattice."""

    words: tuple[str, ...]
    acoustic: float
    """Acoustic score of the best path with these words, in nats."""
    lm: float
    """Language model score in nats, with the end of the sentence, unscaled."""

    def total(self, scales: Scales) -> float:
        """Compute the first-pass score, by which a list is ordered."""
        return self.acoustic + scales.lm * self.lm + scales.word_penalty * (len(self.words) + 1)


class _Transition(NamedTuple):
    """An arc. Its arrays have one entry for each of the H histories of the node that the arc leaves."""

    target: int
    word: str
    """Empty for fillers and at the end."""
    acoustic: float
    penalty: float
    lm: np.ndarray
    """(H,) float64 language model score of the arc's word after each history."""
    histories: np.ndarray
    """(H,) int64 index of each history after the word among those of the target; their number if left out."""


class ExpandedLattice:
    """A lattice whose nodes are split by their histories, the last two words."""

    def __init__(self, lattice: Lattice, model: TrigramModel, scales: Scales, beam: float = math.inf) -> None:
        """Score all arcs.

        Args:
            beam: a history is left out if its best total is more than so many nats below that of the node's
                best history.

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
            # the distinct histories that reach the node, with their best totals, without those below the beam
            arriving = reached.pop(node)
            codes, inverse = np.unique(np.concatenate([pairs for pairs, _ in arriving]), return_inverse=True)
            totals = np.full(len(codes), -math.inf)
            np.maximum.at(totals, inverse, np.concatenate([part for _, part in arriving]))
            kept = totals >= totals.max() - self._beam
            pairs, totals = codes[kept], totals[kept]
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

    def _query(self, ngrams: np.ndarray) -> np.ndarray:
        """Return log-probabilities of trigrams, each packed into a number. The model computes each once."""
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
        """Compute for each history of each node the best total from there to the end; -inf without a path."""
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
    """Return the index of each wanted value in a sorted array; the array's length if it lacks the value."""
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

    Of several paths with the same words, the best one counts. The result is empty if no path leads to the
    end. Without a beam, the search is exact.

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


RIDGE = 1e-3
"""Penalty on the weights of ``ScoreModel``, relative to the variance of their facts."""


def describe(hypotheses: Sequence[Words], errors: np.ndarray, model: ContextModel) -> np.ndarray:
    """Compute the centred facts of the hypotheses of a list, (H, 6) float64; see the module docstring."""
    lengths = [(len(words), sum(map(len, words)), model.score(words)) for words in hypotheses]
    facts = np.column_stack([np.array(lengths, dtype=np.float64), errors])
    centred: np.ndarray = facts - facts.mean(axis=0)
    return centred


@dataclass(frozen=True, slots=True)
class ScoreModel:
    """Linear model of the scores of S streams."""

    weights: np.ndarray
    """(6, S) float64 change of each stream's score if a fact grows by 1."""

    @classmethod
    def fit(cls, facts: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> ScoreModel:
        """Fit the weights by least squares. Every list counts the same.

        Args:
            facts: for each list, (H, 6) centred facts.
            scores: for each list, (H, S) scores.
        """
        x = np.concatenate([list_facts / np.sqrt(len(list_facts)) for list_facts in facts])
        y = np.concatenate([(part - part.mean(axis=0)) / np.sqrt(len(part)) for part in scores])
        gram = x.T @ x
        return cls(np.linalg.solve(gram + np.diag(RIDGE * np.diag(gram) + 1e-9), x.T @ y))

    def transfer(self, scores: np.ndarray, facts: np.ndarray, new_facts: np.ndarray) -> np.ndarray:
        """Correct the scores of an imitated list, (H, S), for the new facts of the made hypotheses."""
        result: np.ndarray = scores + (new_facts - facts) @ self.weights
        return result


N_NEIGHBOURS = 40
"""Number of words that may replace a word: those whose phones are most like its phones."""
MAX_VOCABULARY = 30_000
PHONE_WEIGHTS, LM_WEIGHTS = (0.1, 0.2, 0.4, 0.8, 1.6), (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values from which a and b are chosen."""


class Substitution(NamedTuple):
    """A wrong word in a real hypothesis."""

    right: str
    heard: str
    context: Words
    """Words of the reference before the wrong word."""


class Confusions:
    """Draws wrong words and insertions."""

    def __init__(
        self,
        pronunciations: Pronunciations,
        counts: Mapping[str, int],
        model: ContextModel,
        substitutions: Sequence[Substitution],
        insertions: Counter[Words],
    ) -> None:
        """Learn from the substitutions and insertions of real lists.

        Args:
            counts: number of occurrences of words. Wrong words are the most frequent ones with
                pronunciations.

        Raises:
            ConfigError: fewer than two words have a pronunciation.
        """
        known = [word for word, _ in Counter(counts).most_common() if word in pronunciations]
        if len(known) < 2:
            raise ConfigError(
                f"only {len(known)} of the {len(counts):,} distinct words of the texts are in the "
                "pronunciation dictionary; expected at least 2: give texts of its language, or another "
                "--dictionary"
            )
        self._vocabulary = known[:MAX_VOCABULARY]
        self._heard = [pronunciations[word] for word in self._vocabulary]
        self._pronunciations, self._model = pronunciations, model
        self._insertions = list(insertions)
        frequencies = np.array([insertions[words] for words in self._insertions], dtype=np.float64)
        self._insertion_shares = frequencies / max(frequencies.sum(), 1.0)
        pairs = Counter((pronunciations[s.right], pronunciations[s.heard]) for s in substitutions)
        self.costs = PhoneCosts(
            pronunciations.phones, [(right, heard, float(n)) for (right, heard), n in pairs.items()]
        )
        self._neighbours: dict[str, tuple[list[str], np.ndarray]] = {}
        self.phone_weight, self.lm_weight = self._fit(substitutions)

    def _fit(self, substitutions: Sequence[Substitution]) -> tuple[float, float]:
        """Choose a and b by the likelihood of the substitutions with a wrong word among the neighbours."""
        seen = []
        for right, heard, context in dict.fromkeys(substitutions):
            words, costs = self.neighbours(right)
            if heard in words:
                seen.append((words.index(heard), costs, self._model.log_probs(context, words)))

        def log_likelihood(phone_weight: float, lm_weight: float) -> float:
            total = 0.0
            for index, costs, log_probs in seen:
                logits = lm_weight * log_probs - phone_weight * costs
                total += logits[index] - np.logaddexp.reduce(logits)
            return total

        grid = [(a, b) for a in PHONE_WEIGHTS for b in LM_WEIGHTS]
        return max(grid, key=lambda weights: log_likelihood(*weights))

    def neighbours(self, word: str) -> tuple[list[str], np.ndarray]:
        """Return the ``N_NEIGHBOURS`` other words that sound most like a word, and their phone costs."""
        if word not in self._neighbours:
            phones = self._pronunciations[word]
            distances = process.cdist([phones], self._heard, scorer=Levenshtein.distance, dtype=np.uint8)[0]
            nearest = np.argsort(distances, kind="stable")[: N_NEIGHBOURS + 1]
            words = [self._vocabulary[index] for index in nearest if self._vocabulary[index] != word]
            costs = self.costs.distances(phones, [self._pronunciations[w] for w in words])
            self._neighbours[word] = words[:N_NEIGHBOURS], costs[:N_NEIGHBOURS]
        return self._neighbours[word]

    def draw_wrong(self, word: str, context: Words, n_words: int, random: np.random.Generator) -> Words:
        """Draw ``n_words`` words to replace a word, distinct ones if it has enough neighbours."""
        words, costs = self.neighbours(word)
        logits = self.lm_weight * self._model.log_probs(context, words) - self.phone_weight * costs
        # the largest logits with Gumbel noise are a draw without replacement
        order = np.argsort(-(logits + random.gumbel(size=len(words))))
        return tuple(words[order[index % len(order)]] for index in range(n_words))

    def draw_inserted(self, n_insertions: int, random: np.random.Generator) -> tuple[Words, ...]:
        """Draw insertions in proportion to their frequency in real lists, distinct if there are enough."""
        n_distinct = min(n_insertions, len(self._insertions))
        chosen = random.choice(len(self._insertions), n_distinct, replace=False, p=self._insertion_shares)
        insertions = [self._insertions[index] for index in chosen]
        return tuple(insertions[index % n_distinct] for index in range(n_insertions))


METHOD = "text"
N_TEMPLATES = 5
"""A template is drawn from so many real lists: those whose references are closest in length."""
SCORE_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class Template:
    """A real list, which made lists imitate."""

    source: NBestList
    hypotheses: tuple[Words, ...]
    pattern: Pattern
    facts: np.ndarray
    """(H, 6) facts of the list's hypotheses; see ``describe``."""
    scores: np.ndarray
    """(H, S) float64 scores of its streams."""


class ListImitator:
    """Makes lists that resemble real lists."""

    def __init__(
        self,
        lists: Sequence[NBestList],
        normaliser: Normaliser,
        pronunciations: Pronunciations,
        counts: Mapping[str, int],
        model: ContextModel,
    ) -> None:
        """Learn from real lists.

        Args:
            counts: number of occurrences of words in texts.
            model: language model that stands for the recogniser's own.

        Raises:
            ConfigError: no list can be used, or lists have different streams.
        """
        self._model = model
        usable = [nbest for nbest in lists if nbest.reference and normaliser.normalise(nbest.reference)]
        if not usable:
            raise ConfigError("no list has a reference; lists to learn from need one")
        self.streams = tuple(usable[0].streams)
        different = next((nbest for nbest in usable if set(nbest.streams) != set(self.streams)), None)
        if different is not None:
            raise ConfigError(
                f"list {different.id!r} has the streams {sorted(different.streams)}, list {usable[0].id!r} "
                f"has {sorted(self.streams)}; learn from lists with the same streams"
            )
        self.templates = [self._template(nbest, normaliser) for nbest in usable]
        self._lengths = np.array([template.pattern.n_words for template in self.templates])
        self.score_model = ScoreModel.fit(
            [template.facts for template in self.templates], [template.scores for template in self.templates]
        )
        references = [normaliser.normalise(nbest.reference or "") for nbest in usable]
        substitutions, insertions = collect_errors(references, [t.pattern for t in self.templates])
        self.confusions = Confusions(pronunciations, counts, model, substitutions, insertions)

    def _template(self, nbest: NBestList, normaliser: Normaliser) -> Template:
        hypotheses = tuple(normaliser.normalise(hypothesis.text) for hypothesis in nbest.hypotheses)
        pattern = find_pattern(normaliser.normalise(nbest.reference or ""), hypotheses)
        scores = np.array([nbest.streams[name] for name in self.streams]).reshape(-1, len(hypotheses)).T
        facts = describe(hypotheses, pattern.errors(), self._model)
        return Template(nbest, hypotheses, pattern, facts, scores)

    def make(self, sentence: Sentence) -> NBestList:
        """Make a list for a sentence. Random numbers depend only on the sentence and the seed."""
        random = sentence.random()
        reference = sentence.words
        distances = np.abs(np.log(self._lengths / len(reference)))
        nearest = np.argsort(distances, kind="stable")[:N_TEMPLATES]
        template = self.templates[random.choice(nearest)]
        pattern = template.pattern.stretch(len(reference))
        wrong = [
            self.confusions.draw_wrong(word, reference[:j], len(pattern.wrong[j]), random)
            if pattern.wrong[j]
            else ()
            for j, word in enumerate(reference)
        ]
        inserted = [
            self.confusions.draw_inserted(len(insertions), random) if insertions else ()
            for insertions in pattern.inserted
        ]
        hypotheses = apply_pattern(pattern, reference, wrong, inserted)
        facts = describe(hypotheses, pattern.errors(), self._model)
        scores = self.score_model.transfer(template.scores, template.facts, facts)
        rows = find_kept(hypotheses, template.hypotheses)
        return NBestList(
            id=f"{METHOD}-{sentence.key}",
            hypotheses=tuple(Hypothesis(" ".join(hypotheses[row])) for row in rows),
            streams={
                name: tuple(np.round(scores[rows, column], SCORE_DECIMALS).tolist())
                for column, name in enumerate(self.streams)
            },
            reference=sentence.text,
            group=template.source.group,
            fields={"method": METHOD, "imitates": template.source.id},
        )


def find_kept(hypotheses: Sequence[Words], originals: Sequence[Words]) -> list[int]:
    """Return the indices of the hypotheses to keep.

    A hypothesis is dropped if an earlier one has the same words and was made from another original.
    """
    first_original: dict[Words, Words] = {}
    pairs = zip(hypotheses, originals, strict=True)
    return [row for row, (made, real) in enumerate(pairs) if first_original.setdefault(made, real) == real]


def collect_errors(
    references: Sequence[Words], patterns: Sequence[Pattern]
) -> tuple[list[Substitution], Counter[Words]]:
    """Collect the distinct substitutions of each list, and count insertions."""
    substitutions = [
        Substitution(word, heard, reference[:j])
        for reference, pattern in zip(references, patterns, strict=True)
        for j, word in enumerate(reference)
        for heard in pattern.wrong[j]
    ]
    insertions = Counter(
        words for pattern in patterns for insertions in pattern.inserted for words in insertions
    )
    return substitutions, insertions

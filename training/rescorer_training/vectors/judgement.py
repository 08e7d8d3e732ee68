"""Judge word vectors by nearest neighbours, by analogies, and by similarities of words that people judged.

Questions and pairs with a word that has no vector are left out, and counted. Words are compared in lower
case, as in ``compute-accuracy.c`` of word2vec and in gensim, because the usual test sets capitalise names and
most vocabularies do not. If several words of a vocabulary have the same lower case, the most frequent one is
used.

The answer to the analogy "a is to b as c is to ?" is the word d, other than a, b and c, with the highest

- 3CosAdd: cos(d, b - a + c), where the vectors have length 1 (Mikolov, Yih and Zweig 2013); or
- 3CosMul: cos(d, b) cos(d, c) / (cos(d, a) + ε), where cosines are mapped to 0 … 1 (Levy and Goldberg 2014,
  "Linguistic regularities in sparse and explicit word representations").

Cosines are compared with judged similarities by Spearman's rank correlation. The usual single figure is the
mean over sets of pairs. If all pairs of a set are in a larger set, the smaller set does not count in the
mean, so that no pair counts twice. Among the common sets, this concerns the two halves of WordSim-353, and
MC-30, which is 30 pairs of RG-65 judged again.

For bootstrap intervals, questions or pairs are drawn with replacement, and 2.5 % of the draws are left out at
each end (Efron and Tibshirani 1993, chapter 13). The intervals say how results would vary with other
questions of the same kind. For analogies they are too narrow, because questions that share words resemble
each other. They do not say how results would vary with another training of the vectors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError, FormatError, did_you_mean, quote
from rescorer.formats.io import text_io
from rescorer_training.vectors.files import WordVectors, is_number


@dataclass(frozen=True, slots=True)
class Category:
    """Questions of one kind. Each has four words: the first is to the second as the third to the fourth."""

    name: str
    questions: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class SimilaritySet:
    """Pairs of words with the similarity that people gave them."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    scores: np.ndarray
    """(N,) float64 similarities; higher is more similar, on a scale that differs between sets."""

    def is_part_of(self, other: SimilaritySet) -> bool:
        """Whether ``other`` is larger and has all pairs. The order and the case of words do not matter."""
        return self._unordered() < other._unordered()

    def _unordered(self) -> set[frozenset[str]]:
        return {frozenset(word.lower() for word in pair) for pair in self.pairs}


def read_analogies(path: Path) -> list[Category]:
    """Read questions in the format of Google's: ``: category``, then four words per line.

    Raises:
        FormatError: the file cannot be read, has another kind of line, or has no question. The error names
            the line.
    """
    questions: dict[str, list[tuple[str, ...]]] = {}
    current: list[tuple[str, ...]] | None = None
    for number, line in text_io.read_lines_strict(path):
        fields = line.split()
        if not fields:
            continue
        if fields[0].startswith(":"):
            current = questions.setdefault(line.lstrip(": ").strip(), [])
        elif len(fields) != 4 or current is None:
            expected = "four words" if current is not None else "a category, such as ': family'"
            raise FormatError(f"expected {expected}, got {quote(line)}", file=str(path), line=number)
        else:
            current.append(tuple(fields))
    categories = [Category(name, tuple(found)) for name, found in questions.items() if found]
    if not categories:
        raise FormatError("no questions; expected ': category' and lines of four words", file=str(path))
    return categories


def read_similarities(path: Path) -> SimilaritySet:
    """Read a set of pairs: per line two words and a number, separated by tabs or blanks.

    Blank lines and lines that begin with ``#`` are skipped. The name of the set is that of the file, without
    suffixes and without ``EN-``.

    Raises:
        FormatError: the file cannot be read, has another kind of line, or has no pairs. The error names the
            line.
    """
    pairs, scores = [], []
    for number, line in text_io.read_lines_strict(path):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        if len(fields) != 3 or not is_number(fields[2]) or not np.isfinite(float(fields[2])):
            message = f"expected two words and a number, got {quote(line)}"
            raise FormatError(message, file=str(path), line=number)
        pairs.append((fields[0], fields[1]))
        scores.append(float(fields[2]))
    if not pairs:
        raise FormatError("no pairs; expected lines of two words and a number", file=str(path))
    name = path.name.split(".")[0].removeprefix("EN-")
    return SimilaritySet(name, tuple(pairs), np.array(scores))


class FoldedVectors:
    """Vectors scaled to length 1, which are looked up by their words in lower case."""

    def __init__(self, vectors: WordVectors) -> None:
        self._words = vectors.words
        self.unit_rows = vectors.normalised()
        """(V, D) float32."""

    @cached_property
    def rows(self) -> dict[str, list[int]]:
        """Rows of the words that have the same lower case, by this lower case, the most frequent first."""
        rows = defaultdict(list)
        for row, word in enumerate(self._words):
            rows[word.lower()].append(row)
        return dict(rows)

    def find(self, words: Iterable[str]) -> list[int] | None:
        """Return the row of each word; None if any word has no vector."""
        found = [self.rows.get(word.lower(), []) for word in words]
        return [rows[0] for rows in found] if all(found) else None

    def lower(self, row: int) -> str:
        """Return the lower case of the word of a row."""
        return self._words[row].lower()

    def cosines(self, pairs: np.ndarray) -> np.ndarray:
        """Compute the cosine of each pair of rows, (N, 2) -> (N,) float64."""
        first, second = self.unit_rows[pairs.T].astype(np.float64)
        return np.asarray((first * second).sum(axis=1))


DRAWS = 1000
TAIL = 0.025
"""Share of the draws that a bootstrap interval leaves out at each end."""


def accuracy_interval(n_right: int, n_questions: int) -> tuple[float, float]:
    """Compute the bootstrap interval of a share of right answers, without actual draws.

    The number of right answers in a draw has a binomial distribution, so that its quantiles are known
    exactly. If all answers are right, or all wrong, both ends of the interval are the share itself.
    """
    from scipy.stats import binom

    low, high = binom.ppf([TAIL, 1 - TAIL], n_questions, n_right / n_questions)
    return float(low / n_questions), float(high / n_questions)


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Compute Spearman's rank correlation; ties have mean ranks. NaN if all values of a side are equal."""
    return float(_correlate_ranks(first[None], second[None])[0])


def draw_spearman(first: np.ndarray, second: np.ndarray, seed: int | Sequence[int]) -> np.ndarray:
    """Draw pairs with replacement ``DRAWS`` times, and compute the rank correlation of each draw, (DRAWS,).

    It is NaN if all values of a side are equal.
    """
    generator = np.random.default_rng(seed)
    drawn = []
    chunk = max((1 << 20) // len(first), 1)
    for start in range(0, DRAWS, chunk):
        places = generator.integers(0, len(first), (min(chunk, DRAWS - start), len(first)))
        drawn.append(_correlate_ranks(first[places], second[places]))
    return np.concatenate(drawn)


def percentile_interval(drawn: np.ndarray) -> tuple[float, float]:
    """Return the interval that leaves out ``TAIL`` of the draws at each end, ignoring draws that are NaN."""
    low, high = np.nanquantile(drawn, [TAIL, 1 - TAIL])
    return float(low), float(high)


def _correlate_ranks(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Correlate the ranks of each row, (R, N) and (R, N) -> (R,)."""
    from scipy.stats import rankdata

    ranks = [rankdata(side, axis=1) for side in (first, second)]
    centred = [side - side.mean(axis=1, keepdims=True) for side in ranks]
    products = (centred[0] * centred[1]).sum(axis=1)
    squares = [(side**2).sum(axis=1) for side in centred]
    with np.errstate(invalid="ignore"):
        return np.asarray(products / np.sqrt(squares[0] * squares[1]))


SIGNS = {"+": 1, "-": -1}
MAX_SUGGESTIONS = 20_000
"""Number of most frequent words among which error messages look for a similarly spelt word."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A word near a query."""

    word: str
    cosine: float


def parse_sum(text: str, vectors: WordVectors) -> list[tuple[int, int]]:
    """Parse a word or a sum of words, such as ``king - man``, into the sign and the row of each word.

    If the whole text is a word with a vector, it is not parsed as a sum.

    >>> vectors = WordVectors(("king", "man", "t-shirt"), np.eye(3, dtype=np.float32))
    >>> parse_sum("king - man + t-shirt", vectors)
    [(1, 0), (-1, 1), (1, 2)]

    Raises:
        ConfigError: a word has no vector, or the text is not a sum.
    """
    if text in vectors.index:
        return [(1, vectors.index[text])]
    fields = text.split()
    if fields and fields[0] not in SIGNS:
        fields = ["+", *fields]
    signs, words = fields[::2], fields[1::2]
    if not words or len(signs) != len(words) or not set(signs) <= SIGNS.keys():
        raise ConfigError(f"{quote(text)}: expected a word, or a sum such as 'king - man + woman'")
    for word in words:
        if word not in vectors.index:
            hint = did_you_mean(word, vectors.words[:MAX_SUGGESTIONS])
            raise ConfigError(f"{quote(word)} has no vector{hint}")
    return [(SIGNS[sign], vectors.index[word]) for sign, word in zip(signs, words, strict=True)]


def find_neighbours(
    vectors: WordVectors, terms: Sequence[tuple[int, int]], n_neighbours: int
) -> list[Neighbour]:
    """Find the words with the highest cosine to a sum of vectors of length 1, best first.

    The words of the sum are left out, as in ``distance.c`` and ``word-analogy.c`` of word2vec.

    Args:
        terms: sign and row of each word.

    Raises:
        ConfigError: the sum is zero, so that it has no direction.
    """
    unit_rows = vectors.normalised()
    signs, rows = np.array(terms).T
    target = signs @ unit_rows[rows].astype(np.float64)
    length = np.linalg.norm(target)
    if not length > 1e-6:
        raise ConfigError("the vectors of the sum cancel each other: nothing is near to zero")
    cosines = unit_rows @ (target / length).astype(np.float32)
    cosines[rows] = -np.inf
    n_found = min(n_neighbours, len(vectors) - len(set(rows.tolist())))
    best = np.argsort(-cosines, kind="stable")[:n_found]
    return [Neighbour(vectors.words[row], float(cosines[row])) for row in best]


EPSILON = 1e-6
"""Number ε in 3CosMul that keeps the quotient finite, as in gensim."""
MAX_SCORES = 1 << 22
"""Largest number of scores (questions times words) in memory at once: 16 MiB as float32."""


class Method(StrEnum):
    """Ways to answer a question."""

    ADD = "3CosAdd"
    MULTIPLY = "3CosMul"


@dataclass(frozen=True, slots=True)
class Answers:
    """Numbers of right answers to the questions of one category, or of several together."""

    name: str
    n_questions: int
    n_covered: int
    """Number of questions in which all words have a vector."""
    n_right: dict[Method, int]

    def accuracy(self, method: Method) -> float | None:
        """Return the share of covered questions that are answered right; None if no question is covered."""
        return self.n_right[method] / self.n_covered if self.n_covered else None

    def interval(self, method: Method) -> tuple[float, float] | None:
        """Return the 95 % bootstrap interval of the accuracy; None if no question is covered."""
        return accuracy_interval(self.n_right[method], self.n_covered) if self.n_covered else None


def answer_analogies(vectors: WordVectors, categories: Iterable[Category]) -> list[Answers]:
    """Answer the questions of every category by both methods."""
    folded = FoldedVectors(vectors)
    return [_answer_category(folded, category) for category in categories]


def sum_answers(name: str, answers: Sequence[Answers]) -> Answers:
    """Add up the answers of several categories. Every question counts the same, as in published totals."""
    return Answers(
        name,
        sum(item.n_questions for item in answers),
        sum(item.n_covered for item in answers),
        {method: sum(item.n_right[method] for item in answers) for method in Method},
    )


def _answer_category(folded: FoldedVectors, category: Category) -> Answers:
    found = [rows for question in category.questions if (rows := folded.find(question))]
    right = dict.fromkeys(Method, 0)
    questions, size = np.array(found).reshape(-1, 4), max(MAX_SCORES // len(folded.unit_rows), 1)
    for start in range(0, len(questions), size):
        block = questions[start : start + size]
        for method in Method:
            scores = score_answers(folded.unit_rows, block[:, :3], method)
            for question, row_scores in zip(block, scores, strict=True):
                for row in question[:3]:
                    row_scores[folded.rows[folded.lower(row)]] = -np.inf
            best = scores.argmax(axis=1)
            right[method] += sum(
                folded.lower(answer) == folded.lower(expected)
                for answer, expected in zip(best, block[:, 3], strict=True)
            )
    return Answers(category.name, len(category.questions), len(found), right)


def score_answers(unit_rows: np.ndarray, questions: np.ndarray, method: Method) -> np.ndarray:
    """Score every word as the answer to every question.

    Args:
        unit_rows: (V, D) float32 vectors of length 1.
        questions: (Q, 3) rows of the words a, b and c.

    Returns:
        (Q, V) float32. Scores serve only to order the words.
    """
    a, b, c = unit_rows[questions.T]
    if method is Method.ADD:
        return np.asarray((b - a + c) @ unit_rows.T)
    near_a, near_b, near_c = ((1 + term @ unit_rows.T) / 2 for term in (a, b, c))
    return np.asarray(near_b * near_c / (near_a + np.float32(EPSILON)))


def summarise(categories: Sequence[Category], answers: Sequence[Answers]) -> list[Answers]:
    """Add up answers: for semantic, for syntactic and for all questions; if there is one kind, only for all.

    Raises:
        ConfigError: no question has vectors for all of its words.
    """
    total = sum_answers("total", answers)
    if not total.n_covered:
        raise ConfigError(
            f"none of the {total.n_questions:,} questions has vectors for all of its words; are the vectors "
            "in the language of the questions?"
        )
    by_kind: dict[str, list[Answers]] = {"semantic": [], "syntactic": []}
    for category, item in zip(categories, answers, strict=True):
        # Google's names of questions about grammar begin with ``gram``
        by_kind["syntactic" if category.name.startswith("gram") else "semantic"].append(item)
    if not all(by_kind.values()):
        return [total]
    return [*(sum_answers(kind, items) for kind, items in by_kind.items()), total]


MIN_PAIRS = 6
"""Smallest number of pairs with vectors for which a correlation is given."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Agreement of word vectors with one set."""

    name: str
    n_pairs: int
    n_covered: int
    """Number of pairs in which both words have a vector."""
    part_of: str
    """Name of a larger set that contains all pairs; empty if there is none."""
    spearman: float | None
    """Rank correlation; None if fewer than ``MIN_PAIRS`` pairs have vectors, or all are equally similar."""
    interval: tuple[float, float] | None

    @property
    def counts(self) -> bool:
        """Whether the set counts in the mean over sets."""
        return self.spearman is not None and not self.part_of


@dataclass(frozen=True, slots=True)
class Similarities:
    """Agreement of word vectors with several sets."""

    sets: tuple[Correlation, ...]
    mean: float
    """Mean correlation over the sets that count. All have the same weight."""
    interval: tuple[float, float]


def measure_similarity(vectors: WordVectors, sets: Sequence[SimilaritySet], seed: int = 0) -> Similarities:
    """Correlate the cosines of pairs with the similarities of every set.

    Raises:
        ConfigError: no set counts, because none has enough pairs with vectors.
    """
    folded = FoldedVectors(vectors)
    measured = [_measure_set(folded, item, sets, [seed, number]) for number, item in enumerate(sets)]
    counted = [(row, drawn) for row, drawn in measured if row.counts]
    if not counted:
        raise ConfigError(f"no set has {MIN_PAIRS} pairs with vectors for both words")
    mean = float(np.mean([row.spearman for row, _ in counted]))
    all_drawn = np.array([drawn for _, drawn in counted])
    drawn_means = np.nanmean(all_drawn[:, ~np.isnan(all_drawn).all(axis=0)], axis=0)
    return Similarities(tuple(row for row, _ in measured), mean, percentile_interval(drawn_means))


def _measure_set(
    folded: FoldedVectors, item: SimilaritySet, sets: Sequence[SimilaritySet], seed: list[int]
) -> tuple[Correlation, np.ndarray]:
    found = [folded.find(pair) for pair in item.pairs]
    covered = [number for number, rows in enumerate(found) if rows]
    part_of = next((other.name for other in sets if item.is_part_of(other)), "")
    result, interval, drawn = math.nan, None, np.empty(0)
    if len(covered) >= MIN_PAIRS:
        cosines = folded.cosines(np.array([found[number] for number in covered]))
        scores = item.scores[covered]
        result = spearman(scores, cosines)
    if not math.isnan(result):
        drawn = draw_spearman(scores, cosines, seed)
        interval = percentile_interval(drawn)
    value = None if math.isnan(result) else result
    return Correlation(item.name, len(item.pairs), len(covered), part_of, value, interval), drawn

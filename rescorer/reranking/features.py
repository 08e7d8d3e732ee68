"""Features of hypotheses, from which a reranker computes its scores; each depends on the whole list.

A feature is named ``kind`` or ``kind:argument``, such as ``score:acoustic`` or ``distance:2``. All features
of one kind are computed together, so that they share their work: the distances between all hypotheses, for
instance, are computed once for all temperatures.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count, pairwise
from typing import Literal

import numpy as np
from rapidfuzz.distance import Levenshtein

from rescorer.decision import MAX_STEPS, code_texts, expected_distances
from rescorer.errors import ConfigError, LimitExceeded, did_you_mean, quote
from rescorer.ranking import best_first, posteriors
from rescorer.trie import Words
from rescorer.weights import OOV, WORDS

MAX_VIEW_CELLS = 1 << 24  # largest table of hypotheses by words, in bytes; in larger lists, pairs are sorted


@dataclass(frozen=True)
class ListView:
    """A list as features read it: H hypotheses of N words in total, of which V are distinct."""

    components: Mapping[str, np.ndarray]
    """(H,) float64 by name: streams and language models in nats, and the counts ``words`` and ``oov``."""
    words: Sequence[Words]
    """Canonical words of each hypothesis."""
    context: Words
    """Canonical words that were said before the list."""
    totals: np.ndarray
    """(H,) float64, the total of each hypothesis in nats under the reranker's base weights."""
    _remembered: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    @cached_property
    def n_words(self) -> np.ndarray:
        """(H,) float64, the number of words of each hypothesis, but at least 1, so that one can divide by
        it.
        """
        return np.maximum(self.components[WORDS], 1.0)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of words of each hypothesis, (H,) int64."""
        return np.fromiter(map(len, self.words), np.int64, len(self.words))

    @cached_property
    def _coded(self) -> tuple[dict[str, int], np.ndarray]:
        """Make ``vocabulary`` and ``codes`` in one pass, in which each new word gets the next code."""
        vocabulary: defaultdict[str, int] = defaultdict(count().__next__)
        words = map(vocabulary.__getitem__, chain.from_iterable(self.words))
        codes = np.fromiter(words, np.int64, int(self.lengths.sum()))
        vocabulary.default_factory = None
        return vocabulary, codes

    @property
    def vocabulary(self) -> dict[str, int]:
        """Code of each distinct word, from 0."""
        return self._coded[0]

    @property
    def codes(self) -> np.ndarray:
        """Codes of the words of all hypotheses, one after another, (N,) int64."""
        return self._coded[1]

    @cached_property
    def texts(self) -> list[str]:
        """Each hypothesis as a string with one character per word, whose code point is the code of the word.

        Raises:
            LimitExceeded: the list has more distinct words than there are characters.
        """
        if len(self.vocabulary) > sys.maxunicode:
            raise LimitExceeded(
                f"{len(self.vocabulary):,} distinct words; expected at most {sys.maxunicode:,}; send fewer "
                "hypotheses",
                field="hypotheses",
            )
        text = self.codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
        return [text[begin:end] for begin, end in pairwise(self.offsets.tolist())]

    @cached_property
    def context_codes(self) -> np.ndarray:
        """(C,) int64, the code of each word of the context; -1 for a word that no hypothesis has."""
        codes = (self.vocabulary.get(word, -1) for word in self.context)
        return np.fromiter(codes, np.int64, len(self.context))

    @cached_property
    def rows(self) -> np.ndarray:
        """(N,) int64, the index of the hypothesis that each word in ``codes`` belongs to."""
        return np.repeat(np.arange(len(self.words)), self.lengths)

    @cached_property
    def offsets(self) -> np.ndarray:
        """(H + 1,) int64, the index in ``codes`` where each hypothesis begins, followed by N."""
        return np.concatenate(([0], np.cumsum(self.lengths)))

    def posteriors(self, temperatures: Sequence[str]) -> np.ndarray:
        """Softmax of the base totals at each of T temperatures, (H, T)."""

        def compute(text: str) -> np.ndarray:
            return self.remember(text, lambda view: posteriors(view.totals, float(text)))

        return np.stack([*map(compute, temperatures)], axis=1)

    def remember(self, key: str, compute: Callable[[ListView], np.ndarray]) -> np.ndarray:
        """Return the array that was computed under a key; compute it if this is the first call."""
        if key not in self._remembered:
            self._remembered[key] = compute(self)
        return self._remembered[key]

    def sum_rows(self, values: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Sum values over each hypothesis: (K,) → (H,) float64.

        Args:
            rows: (K,) the hypothesis to which each value belongs; None: there is one value per word, as in
                ``codes``.
        """
        where = self.rows if rows is None else rows
        return np.bincount(where, weights=values, minlength=len(self.words))

    def mean_per_row(self, values: np.ndarray) -> np.ndarray:
        """Mean of the values of each hypothesis's words, (N,) → (H,); 0 without words."""
        return self.sum_rows(values) / np.maximum(self.lengths, 1)

    def least_per_row(self, values: np.ndarray) -> np.ndarray:
        """Smallest of the values of each hypothesis's words, (N,) → (H,); 0 without words."""
        least = np.zeros(len(self.words))
        if len(values):
            filled = self.lengths > 0
            least[filled] = np.minimum.reduceat(values, self.offsets[:-1][filled])
        return least

    @cached_property
    def word_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Distinct pairs of a hypothesis and a word in it: rows and codes of the P pairs, (P,) int64 each."""
        n = max(len(self.vocabulary), 1)
        keys = self.rows * n + self.codes
        if len(self.words) * n > MAX_VIEW_CELLS:
            return np.divmod(np.unique(keys), n)
        has_word = np.zeros((len(self.words), n), dtype=bool)
        has_word.ravel()[keys] = True
        rows, codes = np.nonzero(has_word)
        return rows, codes


MOVES = {"delete": 1, "insert": -1, "replace": 0}
"""Amount that each kind of edit adds, for the words after it, to their place in the best hypothesis minus
their place in the other one."""
MAX_SLOT_CELLS = 1 << 20  # largest table for ranking numbers by counting; larger numbers are sorted


def find_slots(view: ListView) -> np.ndarray:
    """Align each hypothesis with the best one, and return the slot of every word of the list, (N,) int64.

    As in a confusion network, a slot is a place where the hypotheses have different words: a word of the best
    hypothesis, or the k-th word that others insert before one of its words or at its end. The number of a
    slot is S times the place in the best hypothesis, plus k, where S is greater than the length of any
    hypothesis.

    The posterior of a word in a slot is the sum of the posteriors of the hypotheses that have this word
    there. This approximates a confusion network. The alignment takes microseconds, because each hypothesis is
    aligned with the best one alone.

    Raises:
        LimitExceeded: the list is too long to be aligned.
    """
    if (steps := count_slot_steps(view.lengths)) > MAX_STEPS:
        raise LimitExceeded(
            f"aligning {len(view.lengths):,} hypotheses of up to {int(view.lengths.max()):,} words takes "
            f"{steps:,} steps; expected at most {MAX_STEPS:,}; send fewer hypotheses",
            field="hypotheses",
        )
    pivot, step = view.texts[int(best_first(view.totals)[0])], int(view.lengths.max()) + 1
    found = {text: Levenshtein.editops(pivot, text).as_list() for text in dict.fromkeys(view.texts)}
    edits = [found[text] for text in view.texts]
    edit_rows = np.repeat(np.arange(len(edits)), np.fromiter(map(len, edits), np.int64, len(edits)))
    tags, sources, targets = zip(("equal", 0, 0), *chain.from_iterable(edits), strict=True)
    moves = np.fromiter(map(MOVES.__getitem__, tags[1:]), np.int64, len(edit_rows))
    from_place, to_word = np.array(sources[1:], dtype=np.int64), np.array(targets[1:], dtype=np.int64)
    # A word deleted from the best hypothesis moves the places of the words after it by 1, an inserted one by
    # −1. All moves of a hypothesis sum to its difference in length, so one sum runs over all hypotheses, of
    # which each has a cell more than words.
    cells = view.offsets[edit_rows] + edit_rows + to_word + (moves < 0)
    moved = np.cumsum(np.bincount(cells, moves, len(view.codes) + len(edits))).astype(np.int64)
    words = np.arange(len(view.codes))
    slots: np.ndarray = (words + moved[words + view.rows] - view.rows * len(pivot)) * step
    inserted = moves < 0
    places = edit_rows[inserted] * step + from_place[inserted]  # ascending
    n_th = np.arange(len(places)) - np.searchsorted(places, places) + 1
    slots[view.offsets[edit_rows[inserted]] + to_word[inserted]] = from_place[inserted] * step + n_th
    return slots


def index_slots(view: ListView) -> np.ndarray:
    """Number the distinct pairs of a slot and a word in it: (N,) int64 for every word of a list."""
    index = number_values(find_slots(view)) * len(view.vocabulary) + view.codes
    return index if index.max(initial=0) < MAX_SLOT_CELLS else number_values(index)


def number_values(values: np.ndarray) -> np.ndarray:
    """Replace each of N integers, at least 0, by its rank among the distinct ones, from 0: (N,) int64."""
    if values.max(initial=0) >= MAX_SLOT_CELLS:
        return np.unique(values, return_inverse=True)[1]
    occurs = np.zeros(int(values.max(initial=0)) + 1, dtype=np.int64)
    occurs[values] = 1
    numbers: np.ndarray = np.cumsum(occurs)[values] - 1
    return numbers


def count_slot_steps(lengths: np.ndarray) -> int:
    """Upper bound of the work of ``find_slots``, in the unit of ``decision.count_steps``."""
    return 2 * int(lengths.sum()) * (int(lengths.max(initial=0)) // 64 + 1)


MAX_FEATURES = 256
MAX_TEMPERATURE = 1e6
MAX_OVERLAP_ORDER = 5
MAX_CODE = 1 << 62  # largest code of an n-gram


Argument = Literal["", "component", "temperature", "order"]
Cost = Literal["H", "H · N", "H² · N", "H · N²"]
Compute = Callable[[ListView, Sequence[str]], np.ndarray]
Reduce = Callable[[ListView, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class FeatureKind:
    """All features whose names begin with the same kind."""

    compute: Compute  # computes the features for some arguments, (H, number of arguments)
    argument: Argument  # kind of the text after the colon; empty: there is none
    unit: str
    description: str
    cost: Cost  # order of the time that all features of the kind take together, for H hypotheses of N words


def feature_matrix(names: Sequence[str], view: ListView) -> np.ndarray:
    """Compute features of all hypotheses of a list, (H, F) float64, neither centred nor scaled.

    Args:
        names: (F,) names that ``check_feature`` accepts.

    Raises:
        LimitExceeded: the list is too long for distances or for ``find_slots``.
        KeyError: a component is missing.
    """
    matrix = np.empty((len(view.words), len(names)))
    columns: dict[str, list[tuple[int, str]]] = {}
    for column, name in enumerate(names):
        kind, _, argument = name.partition(":")
        columns.setdefault(kind, []).append((column, argument))
    for kind, parts in columns.items():
        indices, arguments = zip(*parts, strict=True)
        matrix[:, list(indices)] = FEATURE_KINDS[kind].compute(view, arguments)
    return matrix


def centre_features(matrix: np.ndarray) -> np.ndarray:
    """Subtract each feature's mean over the list. A value that all hypotheses share cannot rank them."""
    centred: np.ndarray = matrix - matrix.mean(axis=0, keepdims=True)
    return centred


def check_feature(name: str) -> None:
    """Raise ConfigError if the kind of a feature is unknown, or its argument is not allowed."""
    kind, colon, argument = name.partition(":")
    if kind not in FEATURE_KINDS:
        known = ", ".join(FEATURE_KINDS)
        raise ConfigError(
            f"unknown feature {quote(name)}; expected one of {known}{did_you_mean(kind, list(FEATURE_KINDS))}"
        )
    expected = FEATURE_KINDS[kind].argument
    if not expected and colon:
        raise ConfigError(f"feature {quote(name)}: expected {kind} without an argument")
    if expected == "component" and not argument:
        raise ConfigError(f"feature {quote(name)}: expected {kind}:NAME, the name of a stream or a model")
    if expected == "temperature" and not 0 < _parse_number(argument) <= MAX_TEMPERATURE:
        raise ConfigError(
            f"feature {quote(name)}: expected {kind}:T, a temperature above 0, at most {MAX_TEMPERATURE:g}"
        )
    if expected == "order" and argument not in map(str, range(1, MAX_OVERLAP_ORDER + 1)):
        raise ConfigError(f"feature {quote(name)}: expected {kind}:N with N from 1 to {MAX_OVERLAP_ORDER}")


def needed_components(names: Sequence[str]) -> list[str]:
    """Names of the streams and models that appear in the names of features, each once."""
    parts = [name.partition(":") for name in names]
    needed = [argument for kind, _, argument in parts if FEATURE_KINDS[kind].argument == "component"]
    return list(dict.fromkeys(needed))


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _distances(view: ListView, temperatures: Sequence[str]) -> np.ndarray:
    return expected_distances(code_texts(view.texts, "word"), view.posteriors(temperatures))


def _word_posteriors(reduce: Reduce, *, in_slots: bool = False) -> Compute:
    """Return a function that computes features from the posteriors of the words of each hypothesis.

    Args:
        reduce: makes one value per hypothesis from one posterior per word.
        in_slots: whether the posterior of a word is the sum over the hypotheses that have the word in the
            same slot, instead of anywhere.
    """

    def compute(view: ListView, temperatures: Sequence[str]) -> np.ndarray:
        index = view.remember("slots", index_slots) if in_slots else view.codes
        rows, keys = (view.rows, index) if in_slots else view.word_keys
        shares = view.posteriors(temperatures).T
        masses = (np.bincount(keys, weights=of_hypotheses[rows]) for of_hypotheses in shares)
        return np.stack([reduce(view, of_words[index]) for of_words in masses], axis=1)

    return compute


def _characters(view: ListView, _: Sequence[str]) -> np.ndarray:
    lengths = np.fromiter(map(len, view.vocabulary), np.int64, len(view.vocabulary))
    return view.sum_rows(lengths[view.codes])[:, None]


def _copies(view: ListView, _: Sequence[str]) -> np.ndarray:
    counts = Counter(view.texts)
    return np.log([counts[text] for text in view.texts])[:, None]


def _repeats(view: ListView, _: Sequence[str]) -> np.ndarray:
    """Count the words, and pairs of words, that repeat what precedes them: ``the the``, ``in the in the``."""
    codes, rows = view.codes, view.rows
    same_row, same = rows[1:] == rows[:-1], codes[1:] == codes[:-1]
    counts = view.sum_rows((same_row & same).astype(np.float64), rows[:-1])
    again = codes[2:] == codes[:-2]
    pairs = again[:-1] & again[1:] & (rows[3:] == rows[:-3])
    return (counts + view.sum_rows(pairs.astype(np.float64), rows[: len(pairs)]))[:, None]


def _overlap(view: ListView, orders: Sequence[str]) -> np.ndarray:
    columns = []
    is_said = np.zeros(len(view.vocabulary) + 1, dtype=bool)  # the last is for words of no hypothesis
    is_said[view.context_codes] = True
    words_said = is_said[view.codes]
    for order in map(int, orders):
        n_ngrams = max(len(view.codes) - order + 1, 0)
        found = view.rows[:n_ngrams] == view.rows[order - 1 :]
        for k in range(order):
            found &= words_said[k : k + n_ngrams]
        if order > 1:
            ngrams, said = code_ngrams(view.codes, view.context_codes, order)
            found[found] = np.isin(ngrams[found], said)
        columns.append(np.bincount(view.rows[:n_ngrams][found], minlength=len(view.words)))
    return np.stack(columns, axis=1)


def code_ngrams(one: np.ndarray, other: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Convert the n-grams of two sequences of word codes (−1 and above) to integers.

    Equal n-grams get equal integers, in both sequences.

    Returns:
        (N − order + 1,) and (M − order + 1,) int64 for sequences of N and M words; empty for a sequence that
        is too short.
    """
    n, m = max(len(one) - order + 1, 0), max(len(other) - order + 1, 0)
    words = np.concatenate((one, other)) + 1
    base = int(words.max(initial=0)) + 1
    codes = np.concatenate((words[:n], words[len(one) : len(one) + m]))
    for k in range(1, order):
        if int(codes.max(initial=0)) >= MAX_CODE // base:
            codes = np.unique(codes, return_inverse=True)[1]
        codes = codes * base + np.concatenate((words[k : k + n], words[len(one) + k : len(one) + k + m]))
    return codes[:n], codes[n:]


def _column(compute: Callable[[ListView], np.ndarray]) -> Compute:
    return lambda view, _: compute(view)[:, None]


FEATURE_KINDS: dict[str, FeatureKind] = {
    "total": FeatureKind(
        _column(lambda view: view.totals), "", "nats", "total under the reranker's base weights", "H"
    ),
    "score": FeatureKind(
        lambda view, names: np.stack([view.components[name] for name in names], axis=1),
        "component", "nats", "a stream, or a sentence by a language model", "H",
    ),
    "score_per_word": FeatureKind(
        lambda view, names: np.stack([view.components[name] / view.n_words for name in names], axis=1),
        "component", "nats per word", "the same, divided by the number of words", "H",
    ),
    "words": FeatureKind(_column(lambda view: view.components[WORDS]), "", "words", "number of words", "H"),
    "characters": FeatureKind(
        _characters, "", "characters", "length of the words without spaces", "H · N",
    ),
    "oov": FeatureKind(_column(lambda view: view.components[OOV]), "", "words", "unknown words", "H"),
    "empty": FeatureKind(
        _column(lambda view: (view.components[WORDS] == 0).astype(np.float64)), "", "0 or 1", "no words", "H"
    ),
    "log_rank": FeatureKind(
        _column(lambda view: np.log1p(np.arange(len(view.words)))), "", "log",
        "ln(1 + position in the input); leaks the first pass's total where the input is in its order", "H",
    ),
    "first": FeatureKind(
        _column(lambda view: (np.arange(len(view.words)) == 0).astype(np.float64)), "", "0 or 1",
        "first in the input; leaks the same", "H",
    ),
    "posterior": FeatureKind(
        ListView.posteriors, "temperature", "probability", "softmax of the base totals at temperature T", "H"
    ),
    "distance": FeatureKind(
        _distances, "temperature", "words",
        "expected word errors if the truth is in the list, by the posteriors at temperature T", "H² · N",
    ),
    "word_mean": FeatureKind(
        _word_posteriors(ListView.mean_per_row), "temperature", "probability",
        "mean posterior, at temperature T, of the hypotheses that contain a word", "H · N",
    ),
    "word_least": FeatureKind(
        _word_posteriors(ListView.least_per_row), "temperature", "probability",
        "the least of them", "H · N",
    ),
    "slot_mean": FeatureKind(
        _word_posteriors(ListView.mean_per_row, in_slots=True), "temperature", "probability",
        "mean posterior of the words in their places, aligned with the best hypothesis, at temperature T",
        "H · N²",
    ),
    "slot_least": FeatureKind(
        _word_posteriors(ListView.least_per_row, in_slots=True), "temperature", "probability",
        "the least of them", "H · N²",
    ),
    "copies": FeatureKind(_copies, "", "log", "log of the number of hypotheses with the same words", "H · N"),
    "repeats": FeatureKind(
        _repeats, "", "count", "words and word pairs that directly repeat themselves", "H · N"
    ),
    "overlap": FeatureKind(
        _overlap, "order", "n-grams", "n-grams of N words that occur in the context", "H · N"
    ),
}  # fmt: skip


def describe_features() -> list[tuple[str, str, str, str]]:
    """Name, unit, description and cost of each kind of feature, for documentation."""
    forms = {"": "", "component": ":NAME", "temperature": ":T", "order": ":N"}
    return [
        (f"{name}{forms[kind.argument]}", kind.unit, kind.description, kind.cost)
        for name, kind in FEATURE_KINDS.items()
    ]

"""Features of hypotheses, from which a reranker computes its scores.

A feature is named ``kind`` or ``kind:argument``, such as ``score:acoustic`` or ``distance:2``. All features
of one kind are computed together, so that their common part, such as the distances between all hypotheses,
is computed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rescorer.decision.bayes_risk import expected_distances
from rescorer.decision.distances import code_texts
from rescorer.errors import ConfigError, did_you_mean, quote
from rescorer.reranking.list_view import ListView
from rescorer.reranking.slots import index_slots
from rescorer.score_combination import OOV, WORDS

MAX_FEATURES = 256
MAX_TEMPERATURE = 1e6
MAX_OVERLAP_ORDER = 5
MAX_CODE = 1 << 62
"""Largest code of an n-gram."""


Argument = Literal["", "component", "temperature", "order"]
Cost = Literal["H", "H · N", "H² · N", "H · N²"]
Compute = Callable[[ListView, Sequence[str]], np.ndarray]
Reduce = Callable[[ListView, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class FeatureKind:
    """A family of features."""

    compute: Compute
    """Computes the features for some arguments, (H, number of arguments)."""
    argument: Argument
    """What follows the colon; nothing if empty."""
    unit: str
    description: str
    cost: Cost
    """Order of the time that all features of the kind take together, for H hypotheses of N words."""


def feature_matrix(names: Sequence[str], view: ListView) -> np.ndarray:
    """Compute features of all hypotheses of a list, (H, F) float64, neither centred nor scaled.

    Args:
        names: F features, valid as for ``check_feature``.

    Raises:
        LimitExceeded: the list is too long for distances or confusion networks.
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
    """Subtract each feature's mean over the list: what all hypotheses share cannot rank them."""
    centred: np.ndarray = matrix - matrix.mean(axis=0, keepdims=True)
    return centred


def check_feature(name: str) -> None:
    """Raise ConfigError if a feature is unknown or its argument is not one of those permitted."""
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
    """Names of the streams and models that features need, besides those of the base weights."""
    parts = [name.partition(":") for name in names]
    needed = [argument for kind, _, argument in parts if FEATURE_KINDS[kind].argument == "component"]
    return list(dict.fromkeys(needed))


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _scores(view: ListView, names: Sequence[str]) -> np.ndarray:
    return np.stack([view.components[name] for name in names], axis=1)


def _scores_per_word(view: ListView, names: Sequence[str]) -> np.ndarray:
    return _scores(view, names) / view.n_words[:, None]


def _posteriors(view: ListView, temperatures: Sequence[str]) -> np.ndarray:
    return view.posteriors(temperatures)


def _distances(view: ListView, temperatures: Sequence[str]) -> np.ndarray:
    return expected_distances(code_texts(view.texts, "word"), view.posteriors(temperatures))


def _word_posteriors(view: ListView, temperatures: Sequence[str], reduce: Reduce) -> np.ndarray:
    """Reduce, per hypothesis, the posteriors of its words anywhere in the list, (H, T)."""
    rows, codes = view.word_keys
    n = len(view.vocabulary)
    columns = []
    for shares in view.posteriors(temperatures).T:
        masses = np.bincount(codes, weights=shares[rows], minlength=n)
        columns.append(reduce(view, masses[view.codes]))
    return np.stack(columns, axis=1)


def _slot_posteriors(view: ListView, temperatures: Sequence[str], reduce: Reduce) -> np.ndarray:
    """Reduce, per hypothesis, the posteriors of its words in their slots, (H, T)."""
    index = view.remember("slots", index_slots)
    columns = []
    for shares in view.posteriors(temperatures).T:
        masses = np.bincount(index, weights=shares[view.rows])
        columns.append(reduce(view, masses[index]))
    return np.stack(columns, axis=1)


def _characters(view: ListView, _: Sequence[str]) -> np.ndarray:
    lengths = np.fromiter(map(len, view.vocabulary), np.int64, len(view.vocabulary))
    return view.sum_rows(lengths[view.codes])[:, None]


def _copies(view: ListView, _: Sequence[str]) -> np.ndarray:
    counts = Counter(view.texts)
    return np.log([counts[text] for text in view.texts])[:, None]


def _repeats(view: ListView, _: Sequence[str]) -> np.ndarray:
    """Words, and pairs of words, that directly follow upon themselves."""
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
    """Code the n-grams of two sequences as integers, the same for equal ones.

    Args:
        one: (N,) int64, codes of words, at least −1.
        other: (M,) likewise.

    Returns:
        (N − order + 1,) and (M − order + 1,) int64, or empty ones.
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


def _reduced(compute: Callable[..., np.ndarray], reduce: Reduce) -> Compute:
    return lambda view, arguments: compute(view, arguments, reduce)


FEATURE_KINDS: dict[str, FeatureKind] = {
    "total": FeatureKind(
        _column(lambda view: view.totals), "", "nats", "total under the reranker's base weights", "H"
    ),
    "score": FeatureKind(_scores, "component", "nats", "a stream, or a sentence by a language model", "H"),
    "score_per_word": FeatureKind(
        _scores_per_word, "component", "nats per word", "the same, divided by the number of words", "H"
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
        _posteriors, "temperature", "probability", "softmax of the base totals at temperature T", "H"
    ),
    "distance": FeatureKind(
        _distances, "temperature", "words",
        "expected word errors if the truth is in the list, by the posteriors at temperature T", "H² · N",
    ),
    "word_mean": FeatureKind(
        _reduced(_word_posteriors, ListView.mean_per_row), "temperature", "probability",
        "mean posterior, at temperature T, of the hypotheses that contain a word", "H · N",
    ),
    "word_least": FeatureKind(
        _reduced(_word_posteriors, ListView.least_per_row), "temperature", "probability",
        "the least of them", "H · N",
    ),
    "slot_mean": FeatureKind(
        _reduced(_slot_posteriors, ListView.mean_per_row), "temperature", "probability",
        "mean posterior of the words in their places, aligned with the best hypothesis, at temperature T",
        "H · N²",
    ),
    "slot_least": FeatureKind(
        _reduced(_slot_posteriors, ListView.least_per_row), "temperature", "probability",
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

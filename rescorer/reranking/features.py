"""Features of hypotheses, from which a reranker computes its scores.

A feature is named ``kind`` or ``kind:argument``, such as ``score:acoustic`` or ``distance:2``. All features
of one kind are computed together, so that their common part, such as the distances between all hypotheses,
is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from rescorer.decision.bayes_risk import expected_errors
from rescorer.decision.confusion_network import MIN_POSTERIOR, build_network
from rescorer.errors import ConfigError, did_you_mean, quote
from rescorer.ranking import best_first, posteriors
from rescorer.score_combination import OOV, WORDS
from rescorer.trie import Words

MAX_FEATURES = 256
MAX_TEMPERATURE = 1e6
MAX_OVERLAP_ORDER = 5


@dataclass(frozen=True)
class ListView:
    """What the features of a list are computed from."""

    components: Mapping[str, np.ndarray]
    """(H,) float64 by name: streams and language models in nats, and the counts ``words`` and ``oov``."""
    words: Sequence[Words]
    """Canonical words of each hypothesis."""
    context: Words
    """Canonical words of what was said before."""
    totals: np.ndarray
    """(H,) float64, totals in nats under the reranker's base weights."""

    @cached_property
    def n_words(self) -> np.ndarray:
        """Number of words, but at least 1, (H,) float64."""
        return np.maximum(self.components[WORDS], 1.0)


Argument = Literal["", "component", "temperature", "order"]
Compute = Callable[[ListView, Sequence[str]], np.ndarray]


@dataclass(frozen=True, slots=True)
class FeatureKind:
    """A family of features."""

    compute: Compute
    """Computes the features for some arguments, (H, number of arguments)."""
    argument: Argument
    """What follows the colon; nothing if empty."""
    unit: str
    description: str
    cost: str
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


def _tempered(view: ListView, temperatures: Sequence[str]) -> np.ndarray:
    """Posteriors of the base totals at each temperature, (H, T)."""
    return np.stack([posteriors(view.totals, float(t)) for t in temperatures], axis=1)


def _distances(view: ListView, temperatures: Sequence[str]) -> np.ndarray:
    return expected_errors(view.words, _tempered(view, temperatures))


def _word_posteriors(view: ListView, temperatures: Sequence[str], reduce: np.ufunc) -> np.ndarray:
    """Reduce, per hypothesis, the posteriors of its words anywhere in the list, (H, T); 0 without words."""
    shares = _tempered(view, temperatures)
    ids: dict[str, int] = {}
    codes = np.array(
        [ids.setdefault(word, len(ids)) for words in view.words for word in words], dtype=np.int64
    )
    lengths = np.array([len(words) for words in view.words])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    # a word that a hypothesis has twice counts once
    pairs = np.unique(rows * len(ids) + codes) if len(ids) else codes
    result = np.zeros(shares.shape)
    filled = np.flatnonzero(lengths)
    begins = (np.cumsum(lengths) - lengths)[filled]
    for column, share in enumerate(shares.T):
        masses = np.bincount(pairs % max(len(ids), 1), weights=share[pairs // max(len(ids), 1)], minlength=1)
        if len(filled):
            result[filled, column] = reduce.reduceat(masses[codes], begins)
    return result / np.maximum(lengths, 1)[:, None] if reduce is np.add else result


def _slot_posteriors(view: ListView, temperatures: Sequence[str], reduce: Callable[..., float]) -> np.ndarray:
    """Reduce, per hypothesis, the posteriors of its words in their slots, (H, T); 0 without words."""
    order = best_first(view.totals)
    result = np.zeros((len(view.words), len(temperatures)))
    for column, shares in enumerate(_tempered(view, temperatures).T):
        network = build_network(
            [view.words[i] for i in order], np.maximum(shares[order], MIN_POSTERIOR).tolist()
        )
        for row, words in enumerate(view.words):
            result[row, column] = reduce(network.word_posteriors(words)) if words else 0.0
    return result


def _copies(view: ListView, _: Sequence[str]) -> np.ndarray:
    counts: dict[Words, int] = {}
    for words in view.words:
        counts[words] = counts.get(words, 0) + 1
    return np.log([counts[words] for words in view.words])[:, None]


def _repeats(view: ListView, _: Sequence[str]) -> np.ndarray:
    return np.array([_count_repeats(words) for words in view.words], dtype=np.float64)[:, None]


def _count_repeats(words: Words) -> int:
    """Number of words and of word pairs that follow directly upon themselves."""
    singles = sum(a == b for a, b in pairwise(words))
    pairs = sum(words[i : i + 2] == words[i + 2 : i + 4] for i in range(len(words) - 3))
    return singles + pairs


def _overlap(view: ListView, orders: Sequence[str]) -> np.ndarray:
    result = np.zeros((len(view.words), len(orders)))
    for column, order in enumerate(map(int, orders)):
        before = set(_ngrams(view.context, order))
        for row, words in enumerate(view.words):
            result[row, column] = sum(ngram in before for ngram in _ngrams(words, order))
    return result


def _ngrams(words: Words, order: int) -> list[Words]:
    return [words[i : i + order] for i in range(len(words) - order + 1)]


def _column(compute: Callable[[ListView], np.ndarray]) -> Compute:
    return lambda view, _: compute(view)[:, None]


def _reduced(compute: Callable[..., np.ndarray], reduce: Callable[..., float]) -> Compute:
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
        _column(lambda view: np.array([sum(map(len, words)) for words in view.words], dtype=np.float64)),
        "", "characters", "length of the words without spaces", "H · N",
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
        _tempered, "temperature", "probability", "softmax of the base totals at temperature T", "H"
    ),
    "distance": FeatureKind(
        _distances, "temperature", "words",
        "expected word errors if the truth is in the list, by the posteriors at temperature T", "H² · N",
    ),
    "word_mean": FeatureKind(
        _reduced(_word_posteriors, np.add), "temperature", "probability",
        "mean posterior, at temperature T, of the hypotheses that contain a word", "H · N",
    ),
    "word_least": FeatureKind(
        _reduced(_word_posteriors, np.minimum), "temperature", "probability", "the least of them", "H · N"
    ),
    "slot_mean": FeatureKind(
        _reduced(_slot_posteriors, np.mean), "temperature", "probability",
        "mean posterior of the words in their slots of the confusion network at temperature T", "H · N²",
    ),
    "slot_least": FeatureKind(
        _reduced(_slot_posteriors, np.min), "temperature", "probability", "the least such posterior", "H · N²"
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

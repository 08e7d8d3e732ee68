"""Decide among the scored hypotheses of a list by a decision rule, and estimate confidences.

Totals of a list and its canonical words come in; an order, expected errors, a consensus or confidences go
out. Everything here is arithmetic on arrays: it needs neither models nor SciPy.

Minimum Bayes risk: the expected errors of hypothesis i are R_i = Σ_j p_j · d(i, j), where d is the edit
distance and p_j the posterior of hypothesis j. They are the errors to expect if the reference is one of the
hypotheses, each with its posterior as its probability (Stolcke, König & Weintraub 1997; Goel & Byrne 2000).
The hypothesis with the smallest R_i minimises the expected number of wrong words; the one with the largest
total minimises the expected number of wrong sentences. For distances, words are coded as characters, because
rapidfuzz compares strings of up to 64 characters with SIMD instructions, many at a time.

Confidence: posteriors are the softmax of the totals divided by a temperature. The confidence in the best
hypothesis starts from the sum of the posteriors of all hypotheses with the same words. The confidence in one
of its words starts from the sum of the posteriors of the hypotheses that have the word in the same place,
according to their minimum edit distance alignment with the best hypothesis. (Wessel et al. 2001 sum over time
frames, which n-best lists rarely have.) The truth may be outside the list, so a calibrated, monotone map
turns these sums into confidences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from rescorer.consensus import build_confusion_network, find_spans
from rescorer.errors import InvalidList, LimitExceeded
from rescorer.ranking import TIE_DECIMALS, Ranking, posteriors
from rescorer.runtime import pause
from rescorer.text import Normaliser, split_units, unit_noun
from rescorer.trie import Words
from rescorer.types import Calibration, ConfidenceMap, DecisionRule, ErrorUnit

Text = TypeVar("Text", str, Words)
MAX_STEPS = 1_000_000_000
"""Largest number of steps that comparing the hypotheses of one list may take; see ``count_steps``. A step
takes 2 to 4 ns if hypotheses are similar, and up to 30 ns if they are long and have nothing in common.

A list within this limit has fewer distinct words than there are characters (1.1 million): n hypotheses of w
words have at most nw distinct words and at least (nw)² / 128 steps."""
ROWS = 64  # hypotheses that are compared with all others in one call, which bounds the memory


@dataclass(frozen=True, slots=True)
class CodedList:
    """The distinct hypotheses of a list, with their tokens coded as characters."""

    codes: tuple[str, ...]
    """(D,) distinct hypotheses, one character per token. A prefix or suffix that all share is left out."""
    index: np.ndarray
    """(H,) int64, position of each hypothesis in ``codes``."""


def count_steps(lengths: Sequence[int]) -> int:
    """Return an upper bound of the number of steps that comparing all pairs of distinct hypotheses takes.

    A step compares one token of a hypothesis with up to 64 tokens of another, as the bit-parallel algorithm
    of Myers (1999) and Hyyrö (2003) does.

    Args:
        lengths: the number of tokens of each distinct hypothesis.
    """
    return sum(lengths) * sum(length // 64 + 1 for length in lengths) // 2


def code_list(words: Sequence[Words], unit: ErrorUnit = "word") -> CodedList:
    """Code the words of hypotheses, or other units of ``rescorer.text.units``, for comparison.

    Raises:
        LimitExceeded: the comparison would take more than ``MAX_STEPS``.
    """
    distinct, index = _find_distinct([split_units(hypothesis, unit) for hypothesis in words], unit)
    characters: dict[str, str] = {}
    for hypothesis in distinct:
        for word in hypothesis:
            if word not in characters:
                characters[word] = chr(len(characters))
    code = characters.__getitem__
    return CodedList(tuple("".join(map(code, hypothesis)) for hypothesis in distinct), index)


def code_texts(texts: Sequence[str], unit: ErrorUnit) -> CodedList:
    """Code hypotheses each of whose tokens is one character already; ``unit`` names the tokens in errors.

    Raises:
        LimitExceeded: as in ``code_list``.
    """
    distinct, index = _find_distinct(texts, unit)
    return CodedList(tuple(distinct), index)


def _find_distinct(texts: Sequence[Text], unit: ErrorUnit) -> tuple[list[Text], np.ndarray]:
    """Return the distinct texts without the prefix and suffix that all share, and the index of each text."""
    positions: dict[Text, int] = {}
    index = np.array([positions.setdefault(text, len(positions)) for text in texts], dtype=np.int64)
    distinct = list(positions)
    n_first = _common_prefix_length(distinct)
    distinct = [text[n_first:] for text in distinct]
    if n_last := _common_prefix_length([text[::-1] for text in distinct]):
        distinct = [text[: len(text) - n_last] for text in distinct]
    steps = count_steps(list(map(len, distinct)))
    if steps > MAX_STEPS:
        raise LimitExceeded(
            f"comparing {len(distinct):,} distinct hypotheses with up to {max(map(len, distinct)):,} "
            f"{unit_noun(unit)}s takes {steps:,} steps; expected at most {MAX_STEPS:,}; send fewer "
            "hypotheses, or use the decision rule maximum and weights without a reranker",
            field="hypotheses",
        )
    return distinct, index


def _common_prefix_length(texts: Sequence[Text]) -> int:
    """Return the length of the common prefix of all texts; the smallest and the largest text determine it."""
    pairs = zip(min(texts, default=()), max(texts, default=()), strict=False)  # type: ignore[type-var]
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def distance_blocks(codes: Sequence[str]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the upper triangle of the distance matrix in blocks of up to ``ROWS`` rows.

    Yields:
        The first row b of the block, and its distances to the hypotheses from b on, (rows, D − b) int32.
    """
    for begin in range(0, len(codes), ROWS):
        pause()
        rows = codes[begin : begin + ROWS]
        # distances up to the hint are found without computing the whole table
        options: dict[str, Any] = {"score_hint": 31, "dtype": np.int32, "workers": 1}
        yield begin, cdist(rows, codes[begin:], scorer=Levenshtein.distance, **options)


def distance_matrix(words: Sequence[Words], unit: ErrorUnit = "word") -> np.ndarray:
    """Compute the edit distances between all hypotheses of a list, (H, H) int32, symmetric.

    Use it to weigh the same distances many times, as a search for the best temperature does.
    ``expected_errors`` is for a single time: it does not keep the matrix.

    Raises:
        LimitExceeded: as in ``code_list``.
    """
    coded = code_list(words, unit)
    matrix = np.zeros((len(coded.codes), len(coded.codes)), dtype=np.int32)
    for begin, block in distance_blocks(coded.codes):
        matrix[begin : begin + len(block), begin:] = block
        matrix[begin:, begin : begin + len(block)] = block.T
    return matrix[coded.index[:, None], coded.index]


POSTERIOR_DECIMALS = 9  # rounding decimals: where all hypotheses agree, the posterior is exactly 1


@dataclass(frozen=True, slots=True)
class Confidence:
    """Confidence in one hypothesis of a list."""

    utterance: float | None
    """Probability that all words are right; None if the calibration has no map for hypotheses."""
    words: np.ndarray | None
    """(W,) probability that each canonical word is right; None if the calibration has no map for words."""


def estimate_confidence(
    calibration: Calibration, words: Sequence[Words], totals: np.ndarray, best: int
) -> Confidence:
    """Estimate the confidence in the best hypothesis of a list.

    Args:
        words: canonical words of all hypotheses, before merging and dropping.
        totals: (H,) finite totals of these hypotheses.
        best: index of the best hypothesis.
    """
    utterance, word = None, None
    if calibration.utterance is not None:
        is_equal = find_equal(words, best)[None]
        shares = agreement_posteriors(is_equal, totals, calibration.utterance.temperature)
        utterance = float(apply_map(calibration.utterance, shares)[0])
    if calibration.word is not None:
        shares = agreement_posteriors(align_words(words, best), totals, calibration.word.temperature)
        word = apply_map(calibration.word, shares)
    return Confidence(utterance, word)


def find_equal(words: Sequence[Words], best: int) -> np.ndarray:
    """Tell for each hypothesis whether it has the same words as the best one: (H,) bool."""
    return np.array([hypothesis == words[best] for hypothesis in words], dtype=bool)


def align_words(words: Sequence[Words], best: int) -> np.ndarray:
    """Tell, for each of the W words of the best hypothesis, which hypotheses have it in the same place.

    Each hypothesis is aligned with the best one by minimum edit distance; if there are several such
    alignments, rapidfuzz chooses.

    Returns:
        (W, H) bool.
    """
    spoken = words[best]
    columns: dict[Words, np.ndarray] = {}
    for hypothesis in words:
        if hypothesis not in columns:
            column = columns[hypothesis] = np.zeros(len(spoken), dtype=bool)
            for block in Levenshtein.opcodes(spoken, hypothesis):
                if block.tag == "equal":
                    column[block.src_start : block.src_end] = True
    return np.stack([columns[hypothesis] for hypothesis in words], axis=1)


STEPS_PER_ALIGNMENT = 1_000
"""Least time of aligning a hypothesis with the best one, as a number of steps of ``count_steps``."""
STEPS_PER_ALIGNED_WORD = 16  # time of a word that is compared, aligned and weighed, in these steps


def estimate_confidence_steps(calibration: Calibration | None, words: Sequence[Words]) -> int:
    """Return an upper bound of the steps of ``estimate_confidence``, whichever hypothesis is best."""
    if calibration is None:
        return 0
    if calibration.word is None:
        return sum(map(len, words))
    longest = max(map(len, words), default=0)
    distinct = {id(hypothesis): len(hypothesis) for hypothesis in words}  # equal texts share their words
    compared = sum(distinct.values()) * (longest // 64 + 1 + STEPS_PER_ALIGNED_WORD)
    return compared + len(distinct) * (STEPS_PER_ALIGNMENT + longest) + len(words) * longest


def agreement_posteriors(agrees: np.ndarray, totals: np.ndarray, temperature: float) -> np.ndarray:
    """Sum, for each of K claims that something is right, the posteriors of the hypotheses that agree.

    Args:
        agrees: (K, H) bool, whether a hypothesis agrees with a claim.
        totals: (H,) finite totals.

    Returns:
        (K,) float64, from 0 to 1.
    """
    return np.round(agrees @ posteriors(totals, temperature), POSTERIOR_DECIMALS)


def apply_map(confidence_map: ConfidenceMap, shares: np.ndarray) -> np.ndarray:
    """Turn posteriors, taken at the temperature of the map, into confidences of the same shape."""
    return np.interp(shares, confidence_map.posteriors, confidence_map.confidences)


def expected_errors(words: Sequence[Words], posteriors: np.ndarray, unit: ErrorUnit = "word") -> np.ndarray:
    """Compute the expected errors of each hypothesis under the posteriors of a list.

    Args:
        posteriors: (H,) float64, not negative, see ``ranking.posteriors``; or (H, T), T sets of posteriors.
        unit: unit in which errors are counted, such as the word; see ``rescorer.text.units``.

    Returns:
        The shape of ``posteriors``, float64.

    Raises:
        LimitExceeded: the list is too long to be compared, see ``MAX_STEPS``.
    """
    return expected_distances(code_list(words, unit), posteriors)


def expected_distances(coded: CodedList, posteriors: np.ndarray) -> np.ndarray:
    """Compute the expected errors as ``expected_errors`` does, from hypotheses that are already coded."""
    mass = np.zeros((len(coded.codes), *posteriors.shape[1:]))
    np.add.at(mass, coded.index, posteriors)
    risks = np.zeros_like(mass)
    for begin, block in distance_blocks(coded.codes):
        end = begin + len(block)
        risks[begin:end] += block @ mass[begin:]
        risks[end:] += block[:, len(block) :].T @ mass[begin:end]
    return risks[coded.index]


def fewest_errors_first(errors: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return the indices of hypotheses from fewest to most expected errors, (H,) int64.

    Errors and totals are rounded as in ``ranking.best_first``. Among equal errors, the larger total comes
    first; among equal totals, the earlier hypothesis of the input.
    """
    return np.lexsort((-np.round(totals, TIE_DECIMALS), np.round(errors, TIE_DECIMALS)))


STEPS_PER_ROW = 2000
"""Time of aligning one word to a short confusion network, as a number of steps of ``count_steps``."""
STEPS_PER_SLOT = 400  # time of visiting one slot of a network, in steps; each hypothesis visits all slots


def apply_rule(
    ranking: Ranking, rule: DecisionRule, words: Sequence[Words], normaliser: Normaliser
) -> Ranking:
    """Apply a decision rule to a list that is ranked by its totals.

    Args:
        words: canonical words of each hypothesis, in input order.
        normaliser: the normaliser that these words are from.

    Raises:
        InvalidList: the list is too long for the rule.
    """
    if rule.kind == "maximum":
        return ranking
    try:
        if rule.kind == "minimum_bayes_risk":
            return _order_by_expected_errors(ranking, rule, words)
        return _add_consensus(ranking, rule, words, normaliser)
    except LimitExceeded as error:
        raise InvalidList(error.message, list_id=ranking.nbest.id, field=error.field) from None


def estimate_steps(rule: DecisionRule, words: Sequence[Words]) -> int:
    """Estimate the work of a rule for one list, as a number of steps of ``count_steps``.

    For minimum Bayes risk this is an upper bound: the estimate ignores that equal hypotheses are compared
    only once, and common prefixes not at all.
    """
    if rule.kind == "maximum":
        return 0
    lengths = [len(hypothesis) for hypothesis in words]
    if rule.kind == "confusion_network":
        longest = max(lengths, default=0)  # a network seldom has many more slots
        return sum(lengths) * (STEPS_PER_ROW + longest) + len(words) * longest * STEPS_PER_SLOT
    in_words = rule.unit == "word"
    return count_steps(lengths if in_words else [sum(map(len, hypothesis)) for hypothesis in words])


def _order_by_expected_errors(ranking: Ranking, rule: DecisionRule, words: Sequence[Words]) -> Ranking:
    positions = np.sort(ranking.order)
    totals = ranking.totals[positions]
    errors = expected_errors([words[i] for i in positions], posteriors(totals, rule.temperature), rule.unit)
    by_position = np.full(len(words), np.nan)
    by_position[positions] = errors
    order = positions[fewest_errors_first(errors, totals)].tolist()
    return replace(ranking, order=order, decision=rule, expected_errors=by_position)


def _add_consensus(
    ranking: Ranking, rule: DecisionRule, words: Sequence[Words], normaliser: Normaliser
) -> Ranking:
    """Add the consensus of the hypotheses to a ranking, without changing their order."""
    order = ranking.order
    shares = posteriors(ranking.totals[list(order)], rule.temperature).tolist()
    hypotheses = [ranking.nbest.hypotheses[i] for i in order]
    spans = [
        find_spans(hypothesis.fields, words[i], normaliser.normalise)
        for i, hypothesis in zip(order, hypotheses, strict=True)
    ]
    surfaces = [normaliser.surfaces(hypothesis.text) for hypothesis in hypotheses]
    consensus = build_confusion_network([words[i] for i in order], shares, spans, surfaces).consensus()
    spoken = tuple(word.word for word in consensus)
    position = next((i for i in order if words[i] == spoken), None)
    return replace(ranking, decision=rule, consensus=consensus, consensus_position=position)

"""Fit the maps that turn posteriors into confidences, and judge confidences.

A claim says that a best hypothesis, or one of its words, is right; its posterior says how surely. The input
is claims, and whether each was right. The output is a ``ConfidenceMap``, and measures of how good such maps
are on lists to which they were not fitted. ``rescorer.decision`` applies a map.

There are three kinds of maps: a constant, a temperature, and a temperature followed by isotonic regression.
The temperature maximises the likelihood of the outcomes (Guo et al. 2017). Isotonic regression (Zadrozny &
Elkan 2002) then replaces posteriors by shares of right claims. It works on bins of at least
``MIN_BIN_CLAIMS`` claims on average, and adds one claim of the overall share to each bin, so that a handful
of lists cannot make a confidence 0 or 1. Cross-validation chooses the kind of map, because small sets are not
enough for a curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from rapidfuzz.distance import Levenshtein

from rescorer.decision import agreement_posteriors, align_words, apply_map, find_equal
from rescorer.errors import InvalidList
from rescorer.evaluation.error_rate import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.folds import Folds
from rescorer.evaluation.list_errors import missing_reference
from rescorer.evaluation.statistics import Gain, bootstrap, choose_units
from rescorer.pipeline import Rescorer
from rescorer.trie import Words
from rescorer.types import ConfidenceMap, NBestList, Weights

TEMPERATURES = np.geomspace(0.1, 10_000.0, 81)
"""Temperatures that fitting tries. Neighbouring ones differ by 15 %, which hardly changes a posterior."""


@dataclass(frozen=True)
class Outcomes:
    """Claims that best hypotheses, or words of best hypotheses, are right, and whether they were."""

    posteriors: np.ndarray
    """(T, N) float64: posteriors of the N claims at each of ``TEMPERATURES``."""
    correct: np.ndarray
    """(N,) bool."""
    list_index: np.ndarray
    """(N,) int64: the list of each claim."""

    def __len__(self) -> int:
        return len(self.correct)

    def at(self, temperature: float) -> np.ndarray:
        """The posteriors (N,) at that temperature of ``TEMPERATURES`` that is nearest to ``temperature``."""
        return self.posteriors[int(np.argmin(np.abs(TEMPERATURES - temperature)))]

    def select(self, lists: np.ndarray) -> Outcomes:
        """Select the claims about some lists, given as (L,) bool."""
        chosen = lists[self.list_index]
        return Outcomes(self.posteriors[:, chosen], self.correct[chosen], self.list_index[chosen])


def collect_outcomes(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Outcomes:
    """Concatenate the claims about all lists. A part is the claims about one list: (T, K) posteriors, and
    (K,) bool whether they are right."""
    list_index = np.repeat(np.arange(len(parts)), [len(correct) for _, correct in parts])
    posteriors, correct = zip(*parts, strict=True)
    return Outcomes(np.concatenate(posteriors, axis=1), np.concatenate(correct), list_index)


def judge_utterance(
    words: Sequence[Words], totals: np.ndarray, best: int, readings: Sequence[Words]
) -> tuple[np.ndarray, np.ndarray]:
    """Judge the claim that the best hypothesis is right.

    Args:
        words: canonical words of each hypothesis.
        totals: (H,) float64, finite, before merging.
        best: index of the best hypothesis.
        readings: canonical words of each reading of the reference.

    Returns:
        (T, 1) posteriors and (1,) bool.
    """
    agrees = find_equal(words, best)[None]
    return _posteriors(agrees, totals), np.array([words[best] in readings])


def judge_words(
    words: Sequence[Words], totals: np.ndarray, best: int, readings: Sequence[Words]
) -> tuple[np.ndarray, np.ndarray]:
    """Judge, for each of the W words of the best hypothesis, the claim that the word is right.

    A word is right if an alignment of minimum edit distance pairs it with an equal word of the reference. If
    the reference has several readings, the reading with the fewest errors counts. The arguments are those of
    ``judge_utterance``.

    Returns:
        (T, W) posteriors and (W,) bool.
    """
    reading = min(readings, key=lambda reference: Levenshtein.distance(words[best], reference))
    correct = align_words((words[best], reading), 0)[:, 1]
    return _posteriors(align_words(words, best), totals), correct


def _posteriors(agrees: np.ndarray, totals: np.ndarray) -> np.ndarray:
    return np.stack([agreement_posteriors(agrees, totals, temperature) for temperature in TEMPERATURES])


N_BINS = 10
"""Number of equally wide bins from 0 to 1 for calibration error and reliability."""
SMALLEST = 1e-7
"""A confidence is treated as at least this far from 0 and from 1, as in NIST's sclite. Otherwise the
logarithm of 0 would make one wrong word outweigh all others."""


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """The claims whose confidence lies in one bin."""

    lower: float
    upper: float
    claims: int
    confidence: float
    """Mean confidence; NaN without claims."""
    right: float
    """Share of the claims that are right; NaN without claims."""


def log_loss(confidences: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Compute the cross entropy of each claim in nats: -ln of the probability that the confidence gave to the
    claim's outcome.

    Args:
        confidences: (N,) or (..., N) float64, from 0 to 1.
        correct: (N,) bool.
    """
    bounded = np.clip(confidences, SMALLEST, 1.0 - SMALLEST)
    return -np.log(np.where(correct, bounded, 1.0 - bounded))


def normalised_cross_entropy(confidences: np.ndarray, correct: np.ndarray) -> float:
    """Compute NIST's normalised cross entropy (Siu & Gish 1999; NIST, The 2001 Hub-5 Evaluation Plan).

    The measure is (H_max - H) / H_max. H is the cross entropy of the confidences, and H_max is that of a
    constant confidence, namely the share of the claims that are right. The measure is 1 for an oracle, 0 for
    the constant, and negative for confidences that mislead.

    Args:
        confidences: (N,) float64, from 0 to 1.
        correct: (N,) bool.

    Returns:
        NaN if all claims are right or all are wrong, because the constant is then perfect.
    """
    share = correct.mean() if len(correct) else 0.0
    if share in (0.0, 1.0):
        return float("nan")
    largest = log_loss(np.full(len(correct), share), correct).sum()
    return float((largest - log_loss(confidences, correct).sum()) / largest)


def reliability(confidences: np.ndarray, correct: np.ndarray) -> list[ReliabilityBin]:
    """Compare confidences with the share of right claims, in equally wide bins; the last bin includes 1."""
    index = np.minimum((confidences * N_BINS).astype(np.int64), N_BINS - 1)
    bins = []
    for number in range(N_BINS):
        inside = index == number
        claims = int(inside.sum())
        confidence = float(confidences[inside].mean()) if claims else float("nan")
        right = float(correct[inside].mean()) if claims else float("nan")
        bins.append(ReliabilityBin(number / N_BINS, (number + 1) / N_BINS, claims, confidence, right))
    return bins


def expected_calibration_error(confidences: np.ndarray, correct: np.ndarray) -> float:
    """Compute the expected calibration error of Naeini et al. (2015): how far confidences are from the truth.

    It is the mean, over claims, of |mean confidence - share of right claims| in the bin of the claim. The
    result is NaN without claims.
    """
    if not len(correct):
        return float("nan")
    bins = [part for part in reliability(confidences, correct) if part.claims]
    return sum(part.claims * abs(part.confidence - part.right) for part in bins) / len(correct)


Claim = tuple[np.ndarray, np.ndarray]
"""K claims about a list: their posteriors (T, K) at each temperature, and whether they are right, (K,)."""


@dataclass(frozen=True)
class Claims:
    """Claims about lists: one per utterance, and one per word of each best hypothesis."""

    utterances: Outcomes
    words: Outcomes
    lists: tuple[NBestList, ...]
    """The lists of the claims."""

    @property
    def references(self) -> list[str]:
        return [nbest.reference or "" for nbest in self.lists]


def make_claims(
    rescorer: Rescorer,
    lists: Sequence[NBestList],
    weights: Weights,
    *,
    merge: bool = False,
    drop_empty: bool = False,
    counting: CountingSettings = DEFAULT_COUNTING,
) -> tuple[Claims | None, list[InvalidList]]:
    """Score lists, and make claims about the hypothesis that is best under complete weights with their
    decision rule.

    Args:
        merge, drop_empty: as in ``Rescorer.rescore``; they may change which hypothesis is the best.
        counting: says whether references may have alternatives.

    Returns:
        The claims, or None if no list is valid, and the error of each list that is not valid.
    """
    normalise = rescorer.ranker.text_normaliser.normalise
    decided = scored = rescorer.rescore_each(lists, weights)
    if merge or drop_empty:
        decided = rescorer.rescore_each(lists, weights, merge=merge, drop_empty=drop_empty)
    errors: list[InvalidList] = []
    valid: list[NBestList] = []
    utterance_claims: list[Claim] = []
    word_claims: list[Claim] = []
    for nbest, answer, decision in zip(lists, scored, decided, strict=True):
        try:
            if isinstance(answer, InvalidList):
                raise answer
            if isinstance(decision, InvalidList):
                raise decision
            if nbest.reference is None:
                raise missing_reference(nbest)
            readings = [normalise(" ".join(words)) for words in counting.expand(nbest.reference, nbest.id)]
        except InvalidList as error:
            errors.append(error)
            continue
        totals = np.empty(len(nbest.hypotheses))
        for hypothesis in answer.hypotheses:
            totals[hypothesis.original_rank] = hypothesis.total
        words = [normalise(hypothesis.text) for hypothesis in nbest.hypotheses]
        best = decision.best.original_rank
        valid.append(nbest)
        utterance_claims.append(judge_utterance(words, totals, best, readings))
        word_claims.append(judge_words(words, totals, best, readings))
    if not valid:
        return None, errors
    outcomes = collect_outcomes(utterance_claims), collect_outcomes(word_claims)
    return Claims(*outcomes, tuple(valid)), errors


MAX_BINS = 20
MIN_BIN_CLAIMS = 20
"""Smallest number of claims that the bins of isotonic regression have on average."""
MAX_INNER_FOLDS = 5
"""Number of folds in the cross-validation that chooses the kind of map; each joins several outer folds."""


def fit_constant(outcomes: Outcomes) -> ConfidenceMap:
    """Give every claim the same confidence: the share of right claims, smoothed by ``_share_right``."""
    return ConfidenceMap(1.0, (0.5,), (_share_right(outcomes),))


def fit_temperature(outcomes: Outcomes) -> ConfidenceMap:
    """Give every claim its posterior at the most likely temperature, but never 0 or 1."""
    least = 1.0 / (len(outcomes) + 2)
    losses = log_loss(np.clip(outcomes.posteriors, least, 1.0 - least), outcomes.correct).sum(axis=1)
    ends = (least, 1.0 - least)
    return ConfidenceMap(float(TEMPERATURES[np.argmin(losses)]), ends, ends)


def fit_isotonic(outcomes: Outcomes) -> ConfidenceMap:
    """Give every claim the share of right claims among those with similar posteriors.

    The confidence never falls when the posterior rises.
    """
    # SciPy takes a second to load, and programs that serve never fit
    from scipy.optimize import isotonic_regression

    temperature = fit_temperature(outcomes).temperature
    posteriors = outcomes.at(temperature)
    n_bins = int(np.clip(len(outcomes) // MIN_BIN_CLAIMS, 1, MAX_BINS))
    # equal posteriors share a bin: often most words are in all hypotheses and have the posterior 1
    position = np.searchsorted(np.sort(posteriors), posteriors)
    _, index, claims = np.unique(position * n_bins // len(position), return_inverse=True, return_counts=True)
    means = np.bincount(index, posteriors) / claims
    shares = (np.bincount(index, outcomes.correct) + _share_right(outcomes)) / (claims + 1)
    confidences = isotonic_regression(shares, weights=claims + 1.0).x
    changes = np.diff(confidences) != 0  # of a run of equal confidences, the first and the last point remain
    is_end = np.concatenate([[True], changes]) | np.concatenate([changes, [True]])
    return ConfidenceMap(temperature, tuple(means[is_end].tolist()), tuple(confidences[is_end].tolist()))


def _share_right(outcomes: Outcomes) -> float:
    """Share of right claims, never 0 or 1: half a right and half a wrong claim are added."""
    return float((outcomes.correct.sum() + 0.5) / (len(outcomes) + 1))


CONSTANT = "constant"
KINDS: Mapping[str, Callable[[Outcomes], ConfidenceMap]] = MappingProxyType(
    {CONSTANT: fit_constant, "temperature": fit_temperature, "isotonic": fit_isotonic}
)
"""Functions that fit a map, by the kind of map, the simplest first."""


def predict_held_out(
    outcomes: Outcomes, folds: Folds, fit: Callable[[Outcomes], ConfidenceMap]
) -> np.ndarray:
    """Give each claim the confidence that it has under a map that was fitted without the claim's own fold.

    Args:
        fit: fits a map; it gets the claims about the lists of the other folds.

    Returns:
        (N,) float64; NaN for claims for which no lists are left to fit a map.
    """
    confidences = np.full(len(outcomes), np.nan)
    for fold in range(folds.n_folds):
        known = outcomes.select(folds.training(fold))
        held_out = folds.held_out(fold)[outcomes.list_index]
        if len(known) and held_out.any():
            fitted = fit(known)
            confidences[held_out] = apply_map(fitted, outcomes.at(fitted.temperature)[held_out])
    return confidences


def choose_kind(outcomes: Outcomes, folds: Folds) -> str:
    """Find the kind of map with the smallest cross entropy on held-out lists.

    If several kinds are equally good, the simplest is taken. If nothing can be held out, it is a constant.
    """
    inner = folds.merge(MAX_INNER_FOLDS)
    losses = {}
    for name, fit in KINDS.items():
        confidences = predict_held_out(outcomes, inner, fit)
        judged = ~np.isnan(confidences)
        losses[name] = float(log_loss(confidences[judged], outcomes.correct[judged]).sum())
    return min(losses, key=losses.__getitem__)


MAX_FOLDS = 10
"""Largest number of folds in the cross-validation that judges confidences. Folds do not divide groups."""
SURE = 0.9
"""Confidence from which a claim counts as sure."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of how well confidences tell right claims from wrong ones."""

    expected_calibration_error: float
    normalised_cross_entropy: float
    """NaN if all claims are right or all are wrong."""
    sure: int
    """Number of claims with a confidence of at least ``SURE``."""
    sure_and_right: int
    bins: tuple[ReliabilityBin, ...]

    @classmethod
    def measure(cls, confidences: np.ndarray, correct: np.ndarray) -> Measures:
        sure = confidences >= SURE
        return cls(
            expected_calibration_error(confidences, correct),
            normalised_cross_entropy(confidences, correct),
            int(sure.sum()),
            int((sure & correct).sum()),
            tuple(reliability(confidences, correct)),
        )


@dataclass(frozen=True, slots=True)
class CalibrationJudgement:
    """A map for one kind of claim, with measures of how good such maps are on held-out lists."""

    claims: int
    right: int
    """Number of claims that are right."""
    before: Measures
    """Measures of the posteriors at temperature 1."""
    held_out: Measures
    """Measures of held-out confidences. The fold of a claim took no part in the choice of the kind of map,
    nor in fitting the map."""
    gain: Gain
    """Gain of the confidences over a constant confidence, in nats of cross entropy per claim. Both are
    measured on folds on which they were not fitted."""
    kind: str
    """Kind of the map that is fitted to all lists; see ``KINDS``."""
    fitted: ConfidenceMap
    """The map that is fitted to all lists."""

    @property
    def helps(self) -> bool:
        """Whether the confidences are better than a constant, beyond chance."""
        return self.kind != CONSTANT and self.gain.lower_bound > 0

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data, in which undefined numbers are None."""
        content: dict[str, Any] = replace_nan({**asdict(self), "helps": self.helps})
        return content


def judge_calibration(outcomes: Outcomes, folds: Folds, groups: Sequence[str]) -> CalibrationJudgement | None:
    """Fit a map to all claims, and judge this way of fitting by cross-validation.

    Args:
        groups: (L,) speaker or other group of each list, empty if it has none. The interval of the gain comes
            from a bootstrap that draws whole groups.

    Returns:
        None if there is no claim, or if the lists cannot be divided into lists to fit and lists to judge.
    """
    folds = folds.merge(MAX_FOLDS)

    def fit(known: Outcomes) -> ConfidenceMap:
        return KINDS[choose_kind(known, folds)](known)

    confidences = predict_held_out(outcomes, folds, fit)
    constant = predict_held_out(outcomes, folds, KINDS[CONSTANT])
    judged = ~np.isnan(confidences)
    if not judged.any():
        return None
    correct, index, n_lists = outcomes.correct[judged], outcomes.list_index[judged], len(folds.fold)
    losses = [
        np.bincount(index, log_loss(values[judged], correct), n_lists) for values in (constant, confidences)
    ]
    drawn = bootstrap(np.array(losses), np.bincount(index, minlength=n_lists), choose_units(groups))
    kind = choose_kind(outcomes, folds)
    return CalibrationJudgement(
        len(correct),
        int(correct.sum()),
        Measures.measure(outcomes.at(1.0)[judged], correct),
        Measures.measure(confidences[judged], correct),
        drawn.gain(0, 1),
        kind,
        KINDS[kind](outcomes),
    )


def judge_claims(claims: Claims, folds: Folds) -> dict[str, CalibrationJudgement]:
    """Judge confidences of utterances and of words by cross-validation; leave out what cannot be judged."""
    groups = [nbest.group for nbest in claims.lists]
    outcomes = {"utterance": claims.utterances, "word": claims.words}
    judgements = {name: judge_calibration(part, folds, groups) for name, part in outcomes.items()}
    return {name: found for name, found in judgements.items() if found is not None}


def replace_nan(content: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None in plain data."""
    if isinstance(content, dict):
        return {key: replace_nan(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [replace_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content

"""Compare recognised texts of several systems, each with each, on the lists that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from rescorer.evaluation.error_analysis.aligned_text import Aligner, Tokens, reference_tokens
from rescorer.evaluation.error_rate.counting import CountingSettings
from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.evaluation.error_rate.oracle import evaluate_list
from rescorer.evaluation.error_rate.report import to_percent
from rescorer.evaluation.figures import gain_to_dict, interval_to_list
from rescorer.evaluation.statistics.bootstrap import DRAWS, LEVEL, Gain, Interval, bootstrap, sum_by_group
from rescorer.evaluation.statistics.matched_pairs import MatchedPairs, matched_pairs, place_errors
from rescorer.evaluation.statistics.multiple_tests import correct_holm
from rescorer.evaluation.statistics.power import units_needed
from rescorer.evaluation.statistics.rank_tests import RankTest, sign_test, wilcoxon
from rescorer.types import Hypothesis, NBestList

RankTestName = Literal["sign", "wilcoxon"]
Verdict = Literal["better", "worse", "not beyond chance"]
RANK_TESTS: Mapping[RankTestName, Callable[[np.ndarray, np.ndarray], RankTest]] = {
    "sign": sign_test,
    "wilcoxon": wilcoxon,
}


@dataclass(frozen=True, slots=True)
class RecognisedText:
    """The errors of a system in one list."""

    errors: WordErrors
    reading: Tokens
    """The words of the reference that were aligned."""
    places: np.ndarray | None
    """Errors at each place of the reading, as from ``place_errors``; None if they have no places, because
    transcription marks were honoured in counting them."""


@dataclass(frozen=True, slots=True)
class ComparedSystem:
    """The error rate of a system."""

    name: str
    total: WordErrors
    interval: Interval
    """Interval of 95 % of the error rate."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent, the interval null if the lists say nothing about it."""
        return {
            "name": self.name,
            "wer": to_percent(self.total.rate),
            "wer_interval": interval_to_list(self.interval),
            "errors": self.total.errors,
            "substitutions": self.total.substitutions,
            "deletions": self.total.deletions,
            "insertions": self.total.insertions,
            "reference_words": self.total.reference_words,
        }


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """Two systems, and what the tests say about their difference."""

    baseline: str
    system: str
    gain: Gain
    share_of_better_draws: float
    """Bisani and Ney's probability of improvement."""
    matched_pairs: MatchedPairs
    rank_tests: Mapping[RankTestName, RankTest]
    units_needed: int | None
    """Number of lists or groups that would show a difference of this size; None if no number would."""
    p_values: Mapping[str, float]
    """Two-sided, by name of the test: ``bootstrap``, ``matched_pairs`` and those of ``rank_tests``."""
    corrected: Mapping[str, float]
    """The same, each corrected for the number of pairs."""

    @property
    def verdict(self) -> Verdict:
        """What the bootstrap says of the system, corrected for the number of pairs, at a level of 5 %."""
        if self.corrected["bootstrap"] >= 1 - LEVEL:
            return "not beyond chance"
        return "better" if self.gain.gain > 0 else "worse"

    def has_p_value(self, test: str) -> bool:
        """Whether a test has a p-value; the bootstrap has none without an interval."""
        return test != "bootstrap" or self.gain.interval.is_finite

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent, null for what the lists say nothing about."""
        matched = self.matched_pairs
        return {
            "baseline": self.baseline,
            "system": self.system,
            **gain_to_dict(self.gain),
            "units_changed": self.gain.units_changed,
            "units_needed": self.units_needed,
            "share_of_better_draws": self.share_of_better_draws,
            "p_values": self._known_p_values(self.p_values),
            "p_values_corrected": self._known_p_values(self.corrected),
            "matched_pairs": {"segments": matched.segments, "mean": matched.mean, "z": matched.z},
            "rank_tests": {
                name: {"better": test.better, "worse": test.worse, "equal": test.equal}
                for name, test in self.rank_tests.items()
            },
            "verdict": self.verdict,
        }

    def _known_p_values(self, p_values: Mapping[str, float]) -> dict[str, float | None]:
        return {test: value if self.has_p_value(test) else None for test, value in p_values.items()}


@dataclass(frozen=True, slots=True)
class PairwiseComparison:
    """Systems, and all pairs of them."""

    systems: Sequence[ComparedSystem]
    pairs: Sequence[ComparedPair]
    """Each system with each that was given after it."""
    n_units: int
    unit: str
    """What was drawn: ``list`` or ``group``."""
    rank_test_unit: str
    """What the rank tests are about: ``list``, or ``group`` if the lists have groups."""
    warning: str
    """What to expect of intervals of few units; may be empty."""

    def to_dict(self, n_shared: int, others: Mapping[str, int]) -> dict[str, Any]:
        """Convert to JSON data.

        Args:
            n_shared: number of lists that all systems have.
            others: number of further lists of each system.
        """
        return {
            "systems": [system.to_dict() for system in self.systems],
            "pairs": [pair.to_dict() for pair in self.pairs],
            "shared_lists": n_shared,
            "other_lists": dict(others),
            "bootstrap_unit": self.unit,
            "bootstrap_units": self.n_units,
            "rank_test_unit": self.rank_test_unit,
            "warning": self.warning,
        }


def recognise_text(
    nbest: NBestList, index: int, normalise: Callable[[str], Tokens], counting: CountingSettings
) -> RecognisedText:
    """Count the errors of one hypothesis of a list, and find their places.

    Raises:
        InvalidList: there is no reference, or its alternatives are malformed.
    """
    hypothesis = nbest.hypotheses[index]
    chosen = NBestList(nbest.id, (Hypothesis(hypothesis.text),), reference=nbest.reference)
    errors = evaluate_list(chosen, normalise, counting=counting).system
    alignment = Aligner(normalise, counting).align(nbest.reference or "", hypothesis.text)
    places = place_errors(pair.kind for pair in alignment)
    has_places = int(places.sum()) == errors.errors
    return RecognisedText(errors, reference_tokens(alignment), places if has_places else None)


def compare_pairwise(
    systems: Mapping[str, Sequence[RecognisedText]],
    groups: Sequence[str] | None = None,
    *,
    by_group: bool = False,
    tests: Sequence[RankTestName] = (),
    draws: int = DRAWS,
) -> PairwiseComparison:
    """Compare every system with every later one.

    P-values are corrected, test by test, for the number of pairs (Holm).

    Args:
        systems: the same lists of each system, at least one, by name.
        groups: (L,) speaker or other group of each list, if known.
        by_group: draw whole groups, not lists.
        tests: further tests, over groups if these are known.
    """
    counts = [[text.errors for text in texts] for texts in systems.values()]
    errors, words = (
        np.array([[getattr(count, field) for count in row] for row in counts], dtype=np.float64)
        for field in ("errors", "reference_words")
    )
    drawn = bootstrap(errors, words, groups if by_group else None, draws)
    rates = _find_rates(errors, words, groups)
    pairs: list[ComparedPair] = []
    texts = list(systems.values())
    names = list(systems)
    for first, second in combinations(range(len(names)), 2):
        gain = drawn.gain(first, second)
        matched = matched_pairs(*find_common_places(texts[first], texts[second]))
        rank_tests = {test: RANK_TESTS[test](rates[first], rates[second]) for test in tests}
        p_values = {"bootstrap": gain.p_value, "matched_pairs": matched.p_value}
        p_values |= {test: result.p_value for test, result in rank_tests.items()}
        pairs.append(
            ComparedPair(
                names[first],
                names[second],
                gain,
                drawn.share_of_better_draws(first, second),
                matched,
                rank_tests,
                units_needed(abs(gain.gain), gain.standard_error, drawn.n_units),
                p_values,
                corrected=p_values,
            )
        )
    compared = [
        ComparedSystem(name, sum(row, WordErrors.zero()), drawn.interval(index))
        for index, (name, row) in enumerate(zip(names, counts, strict=True))
    ]
    rank_test_unit = "list" if groups is None else "group"
    return PairwiseComparison(
        compared, _correct(pairs), drawn.n_units, drawn.unit, rank_test_unit, drawn.warning
    )


def find_common_places(
    first: Sequence[RecognisedText], second: Sequence[RecognisedText]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Errors of two systems at the same places of each list.

    Where the systems follow different readings of a reference, or errors have no places, all errors of the
    list are at one place: the list is then one segment of the matched pairs test.
    """
    places: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for texts in zip(first, second, strict=True):
        is_common = texts[0].reading == texts[1].reading and all(text.places is not None for text in texts)
        for column, text in zip(places, texts, strict=True):
            in_one = np.array([text.errors.errors], dtype=np.int64)
            column.append(text.places if is_common and text.places is not None else in_one)
    return places


def _find_rates(errors: np.ndarray, words: np.ndarray, groups: Sequence[str] | None) -> np.ndarray:
    """Error rates of each group, or list without groups, that has reference words: (S, N)."""
    if groups is not None:
        errors, words = sum_by_group(errors, groups), sum_by_group(words, groups)
    has_words = words.all(axis=0)
    return np.asarray(errors[:, has_words] / words[:, has_words])


def _correct(pairs: Sequence[ComparedPair]) -> list[ComparedPair]:
    """Correct the p-values of each test for the number of pairs."""
    tests = list(pairs[0].p_values) if pairs else []
    by_test = {test: correct_holm([pair.p_values[test] for pair in pairs]).tolist() for test in tests}
    return [
        replace(pair, corrected={test: by_test[test][number] for test in tests})
        for number, pair in enumerate(pairs)
    ]

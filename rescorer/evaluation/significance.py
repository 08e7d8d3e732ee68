"""Judge systems: intervals of their error rates, gains over each other, verdicts and paired tests.

``judge_rows`` and ``find_verdicts`` judge the rows of a comparison. A verdict says in a sentence whether a
system with language models makes fewer errors than the best rule without them. If a run has several verdicts,
their p-values are corrected for their number (Holm). ``compare_pairwise`` compares the texts that several
systems recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from rescorer.errors import ConfigError, InvalidList
from rescorer.evaluation.error_analysis import Aligner, Tokens, reference_tokens
from rescorer.evaluation.error_rate import CountingSettings, WordErrors
from rescorer.evaluation.list_errors import (
    ListKey,
    describe_p,
    describe_unknown,
    evaluate_list,
    find_first_pass,
    format_gain,
    format_percent,
    gain_to_dict,
    index_lists,
    interval_to_list,
    round_p,
    to_percent,
)
from rescorer.evaluation.statistics import (
    DRAWS,
    LEVEL,
    Bootstrap,
    Gain,
    Interval,
    MatchedPairs,
    RankTest,
    bootstrap,
    choose_units,
    correct_holm,
    matched_pairs,
    place_errors,
    sign_test,
    sum_by_group,
    units_needed,
    wilcoxon,
)
from rescorer.evaluation.systems import Comparison, Row, count_by_list
from rescorer.formats.rescored import is_rescored
from rescorer.types import Hypothesis, NBestList, Weights


class Significance:
    """Bootstrap of all rows of a comparison on the same draws, which are of groups if there are several.

    Args:
        comparison: rows about at least one list.
        draws: number of draws.
    """

    def __init__(self, comparison: Comparison, draws: int = DRAWS) -> None:
        self._rows = [comparison.first_pass, *comparison.rows]
        counts = [count_by_list(row, comparison.scored) for row in self._rows]
        errors, words = (np.stack(columns).astype(np.float64) for columns in zip(*counts, strict=True))
        units = choose_units([item.evaluated.group for item in comparison.scored])
        self.bootstrap: Bootstrap = bootstrap(errors, words, units, draws)

    def interval(self, row: Row) -> Interval:
        """Compute the interval of 95 % of the error rate of a row."""
        return self.bootstrap.interval(self._index(row))

    def gain(self, row: Row, over: Row | None = None) -> Gain:
        """Compute the gain of a row over ``over``, or over the first pass if that is None."""
        return self.bootstrap.gain(0 if over is None else self._index(over), self._index(row))

    def _index(self, row: Row) -> int:
        return next(index for index, known in enumerate(self._rows) if known is row)


def find_best_baseline(rows: Sequence[Row]) -> Row | None:
    """Find the first row with the fewest errors among the rows that need no language model."""
    baselines = [row for row in rows if row.is_baseline]
    return min(baselines, key=lambda row: row.report.total.system.errors, default=None)


@dataclass(frozen=True, slots=True)
class Result:
    """A row with the interval of its error rate and its gain over the first pass."""

    row: Row
    interval: Interval
    """Interval of 95 % of the error rate."""
    gain: Gain | None
    """Gain over the first pass; None for the first pass itself, and for the oracle, which knows the
    references."""
    p_corrected: float = 1.0
    """P-value of the gain, corrected as in the verdict on it or, without such a verdict, for the number of
    systems (Holm)."""

    @property
    def has_p_value(self) -> bool:
        """Whether the row has a gain, and its p-value is known."""
        return self.gain is not None and self.gain.interval.is_finite

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates are in percent, and unknown intervals are null."""
        return {
            **self.row.report.to_dict(),
            "kind": self.row.kind,
            "generated": self.row.n_generated,
            "held_out": self.row.held_out,
            "wer_interval": interval_to_list(self.interval),
            **(gain_to_dict(self.gain) if self.gain else NO_GAIN),
            "p_value_corrected": round_p(self.p_corrected) if self.has_p_value else None,
        }


NO_GAIN = {"gain": None, "gain_interval": None, "p_value": None}


def judge_row(row: Row, significance: Significance) -> Result:
    """Compute the interval of a row's error rate, and its gain over the first pass if the row is a system."""
    is_system = row.kind not in ("first pass", "oracle")
    return Result(row, significance.interval(row), significance.gain(row) if is_system else None)


def judge_rows(comparison: Comparison, significance: Significance) -> list[Result]:
    """Judge each row, and correct the p-values of the gains for the number of systems."""
    results = [judge_row(row, significance) for row in comparison.rows]
    corrected = iter(correct_holm([result.gain.p_value for result in results if result.gain]).tolist())
    return [replace(result, p_corrected=next(corrected) if result.gain else 1.0) for result in results]


@dataclass(frozen=True, slots=True)
class SystemVerdict:
    """The gain of a system over the best row that needs no language model."""

    system: str
    baseline: str
    gain: Gain
    unit: str = "list"
    """Whether the bootstrap drew lists or whole groups: ``list`` or ``group``."""
    p_corrected: float | None = None
    """P-value of the gain, corrected for the number of verdicts; None if this is the only verdict."""
    n_verdicts: int = 1
    """Number of verdicts of the run."""

    @property
    def is_shown(self) -> bool:
        """Whether the difference, in either direction, is beyond chance at a level of 5 %."""
        return self.gain.interval.is_finite and self.p_value < 1 - LEVEL

    @property
    def p_value(self) -> float:
        """P-value of the gain, corrected if there are several verdicts."""
        return self.gain.p_value if self.p_corrected is None else self.p_corrected

    @property
    def is_better(self) -> bool:
        """Whether the system is better beyond chance."""
        return self.is_shown and self.gain.gain > 0

    @property
    def is_worse(self) -> bool:
        return self.is_shown and self.gain.gain < 0

    def sentence(self) -> str:
        """Say the verdict in a sentence."""
        if not self.gain.units_changed:
            return f"{self.system!r} makes the same errors as {self.baseline!r}"
        if not self.gain.interval.is_finite:
            return describe_unknown(repr(self.system), repr(self.baseline), self.gain, self.unit)
        points = format_gain(self.gain)
        if self.p_corrected is not None:
            points += f" ({describe_p(self.p_corrected)}, corrected for {self.n_verdicts} verdicts)"
        if self.is_better:
            return f"{self.system!r} gains {points} over {self.baseline!r}, the best without language models"
        if self.is_worse:
            return f"{self.system!r} is worse than {self.baseline!r}, which needs no language model: {points}"
        return f"{self.system!r} adds nothing beyond chance to {self.baseline!r}: {points}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates are in percent, and an unknown interval is null."""
        return {
            "system": self.system,
            "baseline": self.baseline,
            **gain_to_dict(self.gain),
            "p_value_corrected": round_p(self.p_value) if self.gain.interval.is_finite else None,
            "sentence": self.sentence(),
            "verdict": "better" if self.is_better else "worse" if self.is_worse else "not beyond chance",
        }


def find_verdicts(comparison: Comparison, significance: Significance) -> list[SystemVerdict]:
    """Compare every system that uses language models with the best row that needs none.

    The p-values are not corrected yet; see ``correct_verdicts``. If there are rows with held-out weights,
    only these are compared, because the weights of other rows may have been tuned on the same lists.
    """
    baseline = find_best_baseline(comparison.rows)
    if baseline is None:
        return []
    systems = [row for row in comparison.rows if row.is_rescored]
    chosen = [row for row in systems if row.held_out] or systems
    unit = significance.bootstrap.unit
    return [SystemVerdict(row.name, baseline.name, significance.gain(row, baseline), unit) for row in chosen]


def correct_verdicts(verdicts: Sequence[Sequence[SystemVerdict]]) -> list[list[SystemVerdict]]:
    """Correct the p-values of all verdicts of a run for their number (Holm).

    A single verdict stays as it is.

    Args:
        verdicts: the verdicts of each file.
    """
    n_verdicts = sum(map(len, verdicts))
    if n_verdicts < 2:
        return [list(of_file) for of_file in verdicts]
    corrected = iter(correct_holm([verdict.gain.p_value for part in verdicts for verdict in part]).tolist())
    return [
        [replace(verdict, p_corrected=next(corrected), n_verdicts=n_verdicts) for verdict in of_file]
        for of_file in verdicts
    ]


def share_p_values(
    results: Sequence[Result], verdicts: Sequence[SystemVerdict], first_pass: str
) -> list[Result]:
    """Give each row the corrected p-value of its verdict, where that is about the same gain: over the first
    pass.

    Args:
        verdicts: corrected verdicts on some of the rows.
        first_pass: name of the row of the first pass.
    """
    shared = {verdict.system: verdict for verdict in verdicts if verdict.baseline == first_pass}
    return [
        replace(result, p_corrected=shared[result.row.name].p_value) if result.row.name in shared else result
        for result in results
    ]


RankTestName = Literal["sign", "wilcoxon"]
PairVerdict = Literal["better", "worse", "not beyond chance"]
RANK_TESTS: Mapping[RankTestName, Callable[[np.ndarray, np.ndarray], RankTest]] = {
    "sign": sign_test,
    "wilcoxon": wilcoxon,
}


@dataclass(frozen=True, slots=True)
class RecognisedText:
    """The text that a system recognised for one list, reduced to its errors."""

    errors: WordErrors
    reading: Tokens
    """The reading of the reference with which the text was aligned."""
    places: np.ndarray | None
    """Errors at each place of ``reading``, from ``place_errors``. None, for unknown, if transcription marks
    changed the number of errors."""


DrawnUnit = Literal["list", "group"]
RecognisedLists = Mapping[ListKey, tuple[RecognisedText, str]]
"""The text that a system recognised, and the group of the list, for each list."""


@dataclass(frozen=True, slots=True)
class ComparedSystem:
    """The error rate of a system."""

    name: str
    total: WordErrors
    interval: Interval
    """Interval of 95 % of the error rate."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates are in percent, and an unknown interval is null."""
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
    """Two systems, and the results of tests of their difference."""

    baseline: str
    system: str
    gain: Gain
    share_of_better_draws: float
    """Bisani and Ney's probability of improvement."""
    matched_pairs: MatchedPairs
    rank_tests: Mapping[RankTestName, RankTest]
    units_needed: int | None
    """Number of lists or groups that would show a difference of this size; None if that is unknown."""
    p_values: Mapping[str, float]
    """Two-sided p-values by test: ``bootstrap``, ``matched_pairs`` and those of ``rank_tests``."""
    corrected: Mapping[str, float]
    """The p-values, each corrected for the number of pairs."""

    @property
    def verdict(self) -> PairVerdict:
        """Verdict on ``system`` by the corrected p-value of the bootstrap, at a level of 5 %."""
        if self.corrected["bootstrap"] >= 1 - LEVEL:
            return "not beyond chance"
        return "better" if self.gain.gain > 0 else "worse"

    def has_p_value(self, test: str) -> bool:
        """Whether a test has a p-value. The bootstrap has none if it has no interval."""
        return test != "bootstrap" or self.gain.interval.is_finite

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates are in percent, and unknown figures are null."""
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
class Difference:
    """The difference between the error rates of two systems, judged by one test."""

    baseline: str
    system: str
    gain: Gain
    p_corrected: float
    """P-value of the gain, corrected for the number of comparisons."""
    unit: str
    """The unit that the bootstrap drew at random: ``list`` or ``group``."""
    units_needed: int | None
    """Number of units that would show a difference of this size; None if that is unknown."""

    def sentence(self) -> str:
        """Say in one sentence whether one of the systems is better."""
        gain, system, baseline = self.gain, self.system, self.baseline
        if not gain.units_changed:
            return f"{system} has the same errors as {baseline} in every {self.unit}"
        if not gain.interval.is_finite:
            return describe_unknown(system, baseline, gain, self.unit)
        points = f"{format_percent(abs(gain.gain))} ± {format_percent(gain.interval.half_width)} points"
        direction = "more" if gain.gain < 0 else "fewer"
        sentence = f"{system} has {points} {direction} errors than {baseline}: "
        if self.p_corrected < 1 - LEVEL:
            return sentence + f"more than chance ({describe_p(self.p_corrected)})"
        needed = f"; about {self.units_needed:,} {self.unit}s would show it" if self.units_needed else ""
        return sentence + f"not more than chance ({describe_p(self.p_corrected)}){needed}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates are in percent, and unknown figures are null."""
        return {
            "baseline": self.baseline,
            "system": self.system,
            **gain_to_dict(self.gain),
            "p_value_corrected": round_p(self.p_corrected) if self.gain.interval.is_finite else None,
            "units_needed": self.units_needed,
            "sentence": self.sentence(),
        }


@dataclass(frozen=True, slots=True)
class PairwiseComparison:
    """Several systems, and the comparisons of all pairs of them."""

    systems: Sequence[ComparedSystem]
    pairs: Sequence[ComparedPair]
    """Pairs of each system with each later one."""
    n_units: int
    """Number of lists or groups that the bootstrap drew."""
    unit: str
    """Whether the bootstrap drew lists or whole groups: ``list`` or ``group``."""
    rank_test_unit: str
    """The unit that rank tests compare: ``group`` if the lists have groups, otherwise ``list``."""
    warning: str
    """Caveat about intervals from few lists or groups; may be empty."""

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
        by_group: whether the bootstrap draws whole groups instead of lists.
        tests: rank tests, which compare groups if groups are known.
    """
    counts = [[text.errors for text in texts] for texts in systems.values()]
    errors, words = (
        np.array([[getattr(count, field) for count in row] for row in counts], dtype=np.float64)
        for field in ("errors", "reference_words")
    )
    drawn = bootstrap(errors, words, groups if by_group else None, draws)
    if groups is not None:
        errors, words = sum_by_group(errors, groups), sum_by_group(words, groups)
    has_words = words.all(axis=0)
    rates = errors[:, has_words] / words[:, has_words]  # of each group, or list without groups: (S, N)
    texts, names, pairs = list(systems.values()), list(systems), list[ComparedPair]()
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
                corrected={},
            )
        )
    all_tests = ("bootstrap", "matched_pairs", *tests)
    by_test = {test: correct_holm([pair.p_values[test] for pair in pairs]).tolist() for test in all_tests}
    corrected = [
        replace(pair, corrected={test: by_test[test][number] for test in all_tests})
        for number, pair in enumerate(pairs)
    ]
    compared = [
        ComparedSystem(name, sum(row, WordErrors.zero()), drawn.interval(index))
        for index, (name, row) in enumerate(zip(names, counts, strict=True))
    ]
    rank_test_unit = "list" if groups is None else "group"
    units = drawn.n_units, drawn.unit, rank_test_unit
    return PairwiseComparison(compared, corrected, *units, drawn.warning)


def find_common_places(
    first: Sequence[RecognisedText], second: Sequence[RecognisedText]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the errors of two systems at the same places of each list, for ``matched_pairs``.

    If the systems are aligned with different readings of a reference, or the places of errors are unknown,
    all errors of the list get one place. The list is then one segment of the test.
    """
    places: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for texts in zip(first, second, strict=True):
        is_common = texts[0].reading == texts[1].reading and all(text.places is not None for text in texts)
        for column, text in zip(places, texts, strict=True):
            in_one = np.array([text.errors.errors], dtype=np.int64)
            column.append(text.places if is_common and text.places is not None else in_one)
    return places


def recognise_lists(
    lists: Iterable[NBestList],
    normalise: Callable[[str], Tokens],
    counting: CountingSettings,
    first_pass: Weights | None,
    on_rejected: Callable[[InvalidList], object],
) -> RecognisedLists:
    """Count the errors of the text that a system chose for each list.

    Args:
        first_pass: weights that order lists, except lists that ``rescorer rescore`` wrote; None to keep the
            order of all lists.
        on_rejected: called with the error of each list that cannot be evaluated.
    """
    recognised = []
    for nbest in lists:
        try:
            is_ordered = first_pass is None or is_rescored(nbest)
            chosen = 0 if is_ordered else find_first_pass(nbest, normalise, first_pass)
            text = recognise_text(nbest, chosen, normalise, counting)
        except InvalidList as error:
            on_rejected(error)
            continue
        recognised.append((nbest.id, normalise(nbest.reference or ""), (text, nbest.group)))
    return index_lists(recognised)


def compare_shared(
    systems: Mapping[str, RecognisedLists],
    shared: Sequence[ListKey],
    by: DrawnUnit | None,
    tests: Sequence[RankTestName],
) -> PairwiseComparison:
    """Compare systems on their shared lists.

    Raises:
        ConfigError: no list is shared; or groups are to be drawn, but there are fewer than two groups.
    """
    if not shared:
        examples = ", ".join(f"{name} {next(iter(lists))[0]!r}" for name, lists in systems.items())
        raise ConfigError(
            "the files share no list with the same id and reference: nothing to compare; the first ids are: "
            + examples
        )
    groups = find_groups([[lists[key][1] for key in shared] for lists in systems.values()])
    if by == "group" and groups is None:
        raise ConfigError("--by group: the lists have fewer than two groups; name them with --groups")
    texts = {name: [lists[key][0] for key in shared] for name, lists in systems.items()}
    by_group = groups is not None and by != "list"
    return compare_pairwise(texts, groups, by_group=by_group, tests=tests)


def find_groups(groups_by_system: Sequence[Sequence[str]]) -> list[str] | None:
    """Find the group of each list in the first system that names one; None if there are fewer than two
    groups.

    A list without a group counts as a group.
    """
    named = [next(filter(None, groups), "") for groups in zip(*groups_by_system, strict=True)]
    if len(set(named)) < 2:
        return None
    return [group or f"\0{number}" for number, group in enumerate(named)]

"""The content of a report, as frozen dataclasses that can be written as JSON.

Rates, intervals and gains are in percent of the reference words (or other units); a gain is positive if it
saves errors. If the data of a section is None or empty, the report leaves the section out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from rescorer.evaluation.folds import scale_shares
from rescorer.evaluation.scored_lists import MeasuredList, rerank
from rescorer.evaluation.systems import MixtureScores, find_streams
from rescorer.evaluation.weight_search import ErrorCurve, compute_error_curve, find_units
from rescorer.text import rate_name, unit_noun
from rescorer.types import Weights
from rescorer.weights import EMPTY, OOV, RERANKER, WORDS, get_component, state_defaults, totals

Role = Literal["baseline", "system", "oracle"]
WordKind = Literal["correct", "substitution", "deletion", "insertion"]
Range = tuple[float, float]
"""Lower and upper end."""


@dataclass(frozen=True, slots=True)
class SystemRow:
    """One row of the table of error rates."""

    name: str
    file: str
    role: Role
    """``baseline``: the first pass, over which gains count; ``oracle``: the best that re-ranking could do."""
    wer: float | None
    """None if the references have no words."""
    errors: int
    substitutions: int
    deletions: int
    insertions: int
    sentence_error_rate: float
    wer_interval: Range | None = None
    gain: float | None = None
    """Error rate of the baseline minus error rate of this system, in percentage points."""
    gain_interval: Range | None = None
    p_value: float | None = None
    """Two-sided p-value of the gain, not corrected."""
    p_corrected: float | None = None
    """P-value of the gain, corrected as that of the verdict on it or, without such a verdict, for the number
    of rows. The page shows this one."""
    mark: str = ""
    """``***``, ``**`` or ``*`` if the corrected p-value is below 0.001, 0.01 or 0.05."""


@dataclass(frozen=True, slots=True)
class WeightCurve:
    """Errors as an exact step function of one weight; the other weights stay as chosen."""

    weight: str
    chosen: float
    corners: tuple[float, ...]
    """(C,) values of the weight at which the errors change, ascending."""
    errors: tuple[int, ...]
    """(C + 1,) before the first corner, between corners, after the last corner."""
    shown: Range
    """Smallest and largest value of the weight that the curve shows."""
    fold_values: tuple[float, ...] = ()
    """For each fold of the cross-validation, the value tuned without it; empty without tuning."""


@dataclass(frozen=True, slots=True)
class ShareCurve:
    """Errors at some values of the λ of one model; the λ of the other models keep their proportions."""

    model: str
    chosen: float
    values: tuple[float, ...]
    """(V,) values of λ, ascending."""
    errors: tuple[int, ...]
    """(V,) exact at these values."""
    fold_values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Surface:
    """Errors on a grid of two weights; the other weights stay as chosen."""

    x_weight: str
    y_weight: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    errors: tuple[tuple[int, ...], ...]
    """(Y, X)."""
    chosen: tuple[float, float]
    fold_values: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class DepthCurve:
    """Errors if the best of the first n hypotheses of each list is chosen, for increasing n."""

    depths: tuple[int, ...]
    oracle_errors: tuple[int, ...]
    first_pass_errors: int
    system_errors: int
    system: str


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Hypotheses with similar confidence."""

    confidence: float
    """Mean confidence, 0 to 1."""
    correct: float
    """Share of right hypotheses, 0 to 1."""
    count: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Comparison of one kind of confidence of best hypotheses with the share of these that are right."""

    name: str
    bins: tuple[ReliabilityBin, ...]
    expected_calibration_error: float
    normalised_cross_entropy: float | None = None


@dataclass(frozen=True, slots=True)
class FileAnalysis:
    """Facts about the lists of one file and the weights that were applied to them."""

    file: str
    lists: int
    hypotheses: int
    reference_words: int
    weights: str
    """Name of the weights; empty if the file was not scored by a bundle."""
    weight_values: Mapping[str, float]
    """Weights by name, such as ``acoustic``, ``lm:mixture``, ``word``."""
    curves: tuple[WeightCurve, ...] = ()
    share_curves: tuple[ShareCurve, ...] = ()
    """Empty unless the λ of the mixture were tuned."""
    surface: Surface | None = None
    depth: DepthCurve | None = None
    calibrations: tuple[Calibration, ...] = ()


@dataclass(frozen=True, slots=True)
class WordChange:
    """Numbers of times that rescoring fixed and broke one reference word."""

    word: str
    fixed: int
    """Wrong in the baseline, right in the system."""
    broken: int
    """Right in the baseline, wrong in the system."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """Numbers of times that a word was recognised as another one: by the baseline, and by the system.

    The hypothesis is empty for a deletion, the reference for an insertion.
    """

    reference: str
    hypothesis: str
    baseline: int
    system: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Reference words that the system fixed or broke, compared with the baseline."""

    fixed: int
    broken: int
    words: tuple[WordChange, ...]
    """The words that changed most often."""
    confusions: tuple[Confusion, ...]
    """The most frequent confusions of the baseline and the system."""


@dataclass(frozen=True, slots=True)
class ModelChanges:
    """What one system with language models changed, compared with the baseline."""

    system: str
    weights: Mapping[str, float]
    """Its weights other than 0, as in ``FileAnalysis.weight_values``; empty if they are not known."""
    better: int
    """Number of utterances with fewer errors."""
    worse: int
    """Number of utterances with more errors."""
    fixed: int
    """Reference words that are wrong in the baseline and right in the system."""
    broken: int
    """Reference words that are right in the baseline and wrong in the system."""
    words: tuple[WordChange, ...]
    """The words that it helped most, then those that it hurt most, last."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One speaker or other group."""

    name: str
    utterances: int
    reference_words: int
    baseline_errors: int
    system_errors: int


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups with the most reference words, and the number of all groups."""

    rows: tuple[GroupRow, ...]
    total: int


@dataclass(frozen=True, slots=True)
class AlignedWord:
    """A reference word and the word recognised in its place.

    The hypothesis is empty for a deletion, the reference for an insertion.
    """

    kind: WordKind
    reference: str
    hypothesis: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The text that one or several systems chose for an utterance, aligned with the reference."""

    systems: tuple[str, ...]
    words: tuple[AlignedWord, ...]
    errors: int
    generated: str = ""
    """The phrases that replaced words, as in ``HypothesisRow``."""


@dataclass(frozen=True, slots=True)
class HypothesisRow:
    """One hypothesis of a list with its unweighted components."""

    rank: int
    """1-based rank in the input."""
    text: str
    errors: int
    total: float
    components: tuple[float, ...]
    chosen_by: tuple[str, ...]
    """Systems of the file that chose this hypothesis."""
    generated: str = ""
    """The phrases that replaced words, such as ``Rusk for Rust``; empty if there are none."""


@dataclass(frozen=True, slots=True)
class HypothesisTable:
    """Some hypotheses of a list: those that a system chose, and those with the highest totals."""

    file: str
    components: tuple[str, ...]
    """Names of the components."""
    rows: tuple[HypothesisRow, ...]
    hypotheses: int
    """Number of all hypotheses of the list."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One utterance."""

    id: str
    group: str
    reference_words: int
    baseline_errors: int
    system_errors: int
    readings: tuple[Reading, ...]
    tables: tuple[HypothesisTable, ...] = ()


@dataclass(frozen=True, slots=True)
class Utterances:
    """The utterances that changed most, and the number of all utterances."""

    rows: tuple[Utterance, ...]
    total: int


@dataclass(frozen=True, slots=True)
class ReportData:
    """The content of a report."""

    title: str
    command: str
    """Command line that makes the report; empty if it was made through the library."""
    version: str
    """Version of rescorer."""
    model: str
    """Bundle, as ``name/version``; empty without a bundle."""
    counting: str
    """Description of how errors were counted."""
    unit: str
    """The unit that was counted: ``word``, ``character`` or ``mixed``."""
    lists: int
    reference_words: int
    n_groups: int
    baseline: str
    """Name of the row over which gains are measured."""
    system: str
    """Name of the row that sections about a single system describe."""
    systems: tuple[SystemRow, ...]
    statistics: str = ""
    """One or two sentences about how intervals and p-values were computed."""
    notes: tuple[str, ...] = ()
    """Verdicts and warnings, in full sentences."""
    remarks: tuple[str, ...] = ()
    """Sentences about rows that are missing from the table."""
    files: tuple[FileAnalysis, ...] = ()
    changes: Changes | None = None
    models: tuple[ModelChanges, ...] = ()
    """One entry per row of a language model, up to ``build.MAX_MODELS``."""
    groups: Groups | None = None
    utterances: Utterances | None = None

    @property
    def rate_name(self) -> str:
        """``WER``, ``CER`` or ``MER``."""
        return rate_name(self.unit)

    @property
    def noun(self) -> str:
        """Name of the unit that is counted, in the singular."""
        return unit_noun(self.unit)

    def row(self, name: str) -> SystemRow:
        """The row of a system."""
        return next(row for row in self.systems if row.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return asdict(self)


SHOWN_UNITS = 1.0
"""Distance from the chosen weight to the ends of its curve, in natural units (see ``find_units``)."""
FOLD_MARGIN = 0.05
"""Smallest distance from a fold's value to the ends of its curve, as a share of the curve's width."""
GRID_SIZE = 41
"""Number of values of each of the two weights of a surface."""
MAX_CORNERS = 2000
"""Largest number of corners of a curve; more could not be told apart in a chart."""


@dataclass(frozen=True)
class WeightProblem:
    """Hypotheses that take part in rankings, in flat arrays, one list after the other.

    All lists have the same number of hypotheses: shorter ones are padded with copies of their first one.
    """

    base: np.ndarray
    """(H,) the part of each total that comes from weights that do not vary."""
    components: Mapping[str, np.ndarray]
    """(H,) unweighted components whose weights vary, by the name of the weight."""
    errors: np.ndarray
    """(H,) int64."""
    offsets: np.ndarray
    """(L + 1,) position at which each list begins."""
    chosen: Mapping[str, float]
    """Chosen value of each weight in ``components``."""

    def totals(self, without: Sequence[str] = ()) -> np.ndarray:
        """Compute the totals under the chosen weights, (H,), without the contributions of some weights."""
        parts = (
            self.chosen[name] * values for name, values in self.components.items() if name not in without
        )
        return sum(parts, self.base)

    def unit(self, name: str) -> float:
        """Return the natural unit of a weight; 0 if the weight makes no difference in any list."""
        return float(find_units(self.components[name][None], self.totals(), self.offsets)[0])

    def error_curve(self, intercepts: np.ndarray, slopes: np.ndarray, shown: Range) -> ErrorCurve:
        """Compute the errors as a function of a weight, for its values in the range ``shown``."""
        return compute_error_curve(intercepts, slopes, self.errors, self.offsets, *shown)


def make_problem(scored: Sequence[MeasuredList], weights: Weights) -> WeightProblem:
    """Arrange lists in flat arrays from which errors can be computed while weights vary.

    The weights of streams, language models and counts vary, even those that are 0, and the weights of
    rerankers that are in use. The weight of the first stream stays as it is, because only the proportions
    between weights matter. If hypotheses were merged, the weights of all streams stay, because the merged
    probabilities depend on them.
    """
    used = [name for name, value in weights.streams.items() if value]
    is_merged = any(item.selection.merge for item in scored)
    fixed = used if is_merged else used[:1]
    streams = {name: weights.streams[name] for name in fixed}
    stated = state_defaults(weights)  # else weights of phrases would vary with those of models
    base_weights = replace(
        stated, streams=streams, lm={}, word=0.0, oov=0.0, empty=0.0, rerankers={}, components={}
    )
    unused = [] if is_merged else find_streams(scored[0].components, weights)
    unused = [name for name in unused if all(name in item.components for item in scored)]
    names = {name: name for name in (*used, *unused) if name not in fixed}
    names |= {f"lm:{name}": name for name in weights.lm if name in scored[0].components}
    names |= {"word": WORDS, "oov": OOV, "empty": EMPTY}
    names |= {f"{RERANKER}{name}": f"{RERANKER}{name}" for name, value in weights.rerankers.items() if value}
    names |= {name: name for name, value in weights.components.items() if value}
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("", "errors", *names)}
    longest = max(len(item.words) for item in scored)
    for item in scored:
        order, base = item.selection.order(item.words, totals(item.components, base_weights))
        kept = sorted(order)
        index = np.array(kept + kept[:1] * (longest - len(kept)))
        rows[""].append(base[index])
        rows["errors"].append(np.array([counts.errors for counts in item.evaluated.hypotheses])[index])
        for name, component in names.items():
            rows[name].append(get_component(item.components, component)[index])
    arrays = {name: np.concatenate(values) for name, values in rows.items()}
    values = weights.by_option()
    components = {name: arrays[name] for name in names}
    chosen = {name: values.get(name, 0.0) for name in names}
    offsets = np.arange(len(scored) + 1) * longest
    return WeightProblem(arrays[""], components, arrays["errors"], offsets, chosen)


def describe_curves(problem: WeightProblem, folds: Sequence[Weights]) -> tuple[WeightCurve, ...]:
    """Describe the errors as a function of each weight that makes a difference."""
    curves = []
    for name, values in problem.components.items():
        shown = _find_range(problem, name, folds)
        if shown is None:
            continue
        curve = problem.error_curve(problem.totals(without=[name]), values, shown)
        corners, errors = _cut(curve, *shown)
        folds_chose = tuple(fold.by_option().get(name, 0.0) for fold in folds)
        curves.append(WeightCurve(name, problem.chosen[name], corners, errors, shown, folds_chose))
    return tuple(curves)


def describe_share_curves(
    scored: Sequence[MeasuredList], weights: Weights, folds: Sequence[Weights], mixture: MixtureScores
) -> tuple[ShareCurve, ...]:
    """Describe the errors at each λ that tuning tried, for models where errors differ.

    The other weights stay as chosen. With two models, whose λ sum to 1, only the second has a curve.
    """
    (start, *caches), curves = mixture.choices[0], []
    for index, model in list(enumerate(mixture.models))[1 if len(start) == 2 else 0 :]:
        choices = {
            shares[index]: choice
            for choice, (shares, *own_caches) in enumerate(mixture.choices)
            if own_caches == caches and np.allclose(shares, scale_shares(start, index, shares[index]))
        }
        values = sorted(choices)
        errors = [
            sum(rerank(item, weights).system.errors for item in mixture.apply(scored, choices[value]))
            for value in values
        ]
        if min(errors) < max(errors):
            folds_chose = tuple(fold.mixture[model] for fold in folds)
            curves.append(ShareCurve(model, start[index], tuple(values), tuple(errors), folds_chose))
    return tuple(curves)


def describe_surface(problem: WeightProblem, folds: Sequence[Weights]) -> Surface | None:
    """Describe the errors on a grid of a language model's weight and the word weight.

    The language model is the first one whose weight is not 0. The result is None without a language model.
    """
    models = [name for name in problem.components if name.startswith("lm:")]
    models.sort(key=lambda name: problem.chosen[name] == 0.0)
    ranges = [_find_range(problem, name, folds) for name in (*models[:1], "word")]
    if len(ranges) < 2 or ranges[0] is None or ranges[1] is None:
        return None
    lm, word = models[0], "word"
    x, y = (np.linspace(*shown, GRID_SIZE) for shown in ranges if shown)
    base = problem.totals(without=[lm, word])
    columns = [
        problem.error_curve(
            base + value * problem.components[lm], problem.components[word], (y[0], y[-1])
        ).at(y)
        for value in x
    ]
    errors = np.stack(columns, axis=1)  # (Y, X)
    chose = (fold.by_option() for fold in folds)
    return Surface(
        lm,
        word,
        tuple(x.tolist()),
        tuple(y.tolist()),
        tuple(tuple(row) for row in errors.tolist()),
        (problem.chosen[lm], problem.chosen[word]),
        tuple((fold[lm], fold[word]) for fold in chose),
    )


def _find_range(problem: WeightProblem, name: str, folds: Sequence[Weights]) -> Range | None:
    """Find a range around the chosen value and those of the folds; None if the weight makes no difference.

    The range of a language model does not go below 0 if none of the values does.
    """
    unit = SHOWN_UNITS * problem.unit(name)
    if not unit:
        return None
    values = [problem.chosen[name], *(fold.by_option().get(name, 0.0) for fold in folds)]
    low, high = min(values[0] - unit, *values), max(values[0] + unit, *values)
    margin = FOLD_MARGIN * (high - low)
    low, high = min(low, min(values) - margin), max(high, max(values) + margin)
    return (max(low, 0.0) if name.startswith("lm:") and min(values) >= 0 else low), high


def _cut(curve: ErrorCurve, low: float, high: float) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the corners within a range and the errors between them.

    If there are too many corners, the range is divided, and only the last corner of each part is kept.
    """
    start, end = np.searchsorted(curve.corners, [low, high])
    corners, errors = curve.corners[start:end], curve.errors[start : end + 1]
    if len(corners) > MAX_CORNERS:
        stretch = ((corners - low) / (high - low) * MAX_CORNERS).astype(np.int64)
        is_last = np.append(stretch[1:] != stretch[:-1], True)
        corners, errors = corners[is_last], np.append(errors[:1], errors[1:][is_last])
    return tuple(corners.tolist()), tuple(errors.tolist())

"""Everything that a report shows, as frozen data that can be written as JSON.

Rates, intervals and gains are in percent of the reference words (or other units); a gain is positive if it
saves errors. A section whose data is missing is left out of the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rescorer.text import rate_name, unit_noun

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
    """``baseline``: the first pass, from which gains count; ``oracle``: the best that re-ranking could do."""
    wer: float | None
    """None if the references have no words."""
    errors: int
    substitutions: int
    deletions: int
    insertions: int
    sentence_error_rate: float
    wer_interval: Range | None = None
    gain: float | None = None
    """Error rate of the baseline minus that of this system, in points."""
    gain_interval: Range | None = None
    p_value: float | None = None
    """Two-sided p of the gain, of this row alone."""
    mark: str = ""
    """``***`` p < 0.001, ``**`` p < 0.01, ``*`` p < 0.05 after correction for the number of rows."""


@dataclass(frozen=True, slots=True)
class WeightCurve:
    """Error rate as an exact step function of one weight, the others fixed at the chosen weights."""

    weight: str
    chosen: float
    corners: tuple[float, ...]
    """(C,) values of the weight at which the errors change, ascending."""
    errors: tuple[int, ...]
    """(C + 1,) before the first corner, between corners, after the last corner."""
    shown: Range
    """Range of the weight that the curve covers."""
    fold_values: tuple[float, ...] = ()
    """Values that the folds of the cross-validation chose; empty without tuning."""


@dataclass(frozen=True, slots=True)
class ShareCurve:
    """Error rate at some values of the λ of one model in the mixture; the other λ keep their proportions."""

    model: str
    chosen: float
    values: tuple[float, ...]
    """(V,) values of λ, ascending."""
    errors: tuple[int, ...]
    """(V,) exact at these values."""
    fold_values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Surface:
    """Errors on a grid of two weights, the others fixed at the chosen weights."""

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
    """Errors of the best hypothesis among the first n, for increasing n."""

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
    """Share of them that are right, 0 to 1."""
    count: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """How often best hypotheses of a confidence are right."""

    name: str
    bins: tuple[ReliabilityBin, ...]
    expected_calibration_error: float
    normalised_cross_entropy: float | None = None


@dataclass(frozen=True, slots=True)
class FileAnalysis:
    """What is known about the lists of one file and the weights applied to them."""

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
    """How often rescoring fixed and broke one reference word."""

    word: str
    fixed: int
    """Wrong in the baseline, right in the system."""
    broken: int
    """Right in the baseline, wrong in the system."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """How often a reference word was recognised as another; an empty word is a deletion or an insertion."""

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
    """A reference word and what was recognised in its place; one of them is empty in gaps."""

    kind: WordKind
    reference: str
    hypothesis: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What one or more systems chose for an utterance, aligned with the reference."""

    systems: tuple[str, ...]
    words: tuple[AlignedWord, ...]
    errors: int
    generated: str = ""
    """What was put in place of what in their text; see ``HypothesisRow``."""


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
    """What was put in place of what, such as ``Rusk for Rust``; empty for the recogniser's own."""


@dataclass(frozen=True, slots=True)
class HypothesisTable:
    """Hypotheses of a list: those that some system chose, and the ones with the highest totals."""

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
    """Everything that a report shows."""

    title: str
    command: str
    """Command line that makes the report; empty if a program made it."""
    version: str
    """Version of rescorer."""
    model: str
    """Bundle, as ``name/version``; empty if there is none."""
    counting: str
    """How errors were counted, in words."""
    unit: str
    """What was counted: ``word``, ``character`` or ``mixed``."""
    lists: int
    reference_words: int
    n_groups: int
    baseline: str
    """Name of the row that gains are relative to."""
    system: str
    """Name of the row that sections about one system describe."""
    systems: tuple[SystemRow, ...]
    statistics: str = ""
    """How intervals and p-values were computed, in one or two sentences."""
    notes: tuple[str, ...] = ()
    """Verdicts and warnings, in full sentences."""
    remarks: tuple[str, ...] = ()
    """Why the table lacks rows."""
    files: tuple[FileAnalysis, ...] = ()
    changes: Changes | None = None
    groups: Groups | None = None
    utterances: Utterances | None = None

    @property
    def rate_name(self) -> str:
        """``WER``, ``CER`` or ``MER``."""
        return rate_name(self.unit)

    @property
    def noun(self) -> str:
        """What the reference words are, in the singular."""
        return unit_noun(self.unit)

    def row(self, name: str) -> SystemRow:
        """The row of a system."""
        return next(row for row in self.systems if row.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return asdict(self)

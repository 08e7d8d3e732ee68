"""Collect evaluated files, compare their systems, and convert the result to JSON data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rescorer.cli.output import Rejections
from rescorer.evaluation.comparison.analysis import (
    AlignedList,
    ErrorAnalysis,
    align_rows,
    analyse_errors,
    find_oracle_by_depth,
)
from rescorer.evaluation.comparison.row import Row, choose_row
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.error_analysis.aligned_text import Aligner
from rescorer.evaluation.error_rate.counting import CountingSettings, Normalise
from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.evaluation.error_rate.report import to_percent
from rescorer.evaluation.error_rate.shared_lists import ListKey, find_shared_lists, index_lists
from rescorer.evaluation.significance.gains import Significance
from rescorer.evaluation.significance.results import Result, judge_rows
from rescorer.evaluation.significance.verdict import Verdict, correct_verdicts, find_verdicts
from rescorer.text import Normaliser, remark_on_spacing

OWN_LISTS = ", all its lists"
"""Ends the names of rows about all lists of a file, where most rows are about those that files share."""


@dataclass(frozen=True)
class EvaluatedFile:
    """The lists of a file that could be evaluated."""

    lists: Mapping[ListKey, ScoredList]
    compare: Callable[[Sequence[ScoredList]], Comparison]
    """Makes the rows of some of the lists."""
    normalise: Normalise
    """Converts the references to the words that were counted."""
    unknown: Collection[str] | None
    """Words of the references that the language models do not know; None without models."""


@dataclass(frozen=True)
class FileResults:
    """The rows of one file, on some of its lists."""

    file: str
    suffix: str
    """Added to the names of the rows; not empty if they are about other lists than most rows."""
    comparison: Comparison
    significance: Significance
    results: Sequence[Result]
    verdicts: Sequence[Verdict]
    oracle_by_depth: Mapping[int, WordErrors]

    @property
    def label(self) -> str:
        """The file, and which of its lists if not those of most rows."""
        return self.file + self.suffix


@dataclass
class Evaluation:
    """The files, their rows, and the lists that were rejected."""

    counting: CountingSettings
    normaliser: Normaliser
    """Gives the words that errors are counted in, and by which equal references of several files are
    recognised."""
    files: dict[str, EvaluatedFile] = field(default_factory=dict)
    parts: list[FileResults] = field(default_factory=list)
    n_shared: int = 0
    """Number of lists that all files have; 0 if there are none, and each row is about lists of its own."""
    perplexity: dict[str, Any] = field(default_factory=dict)
    """Scores of the references, by file."""
    rejected: Rejections = field(default_factory=Rejections)

    def add(
        self,
        file: str,
        scored: Sequence[ScoredList],
        compare: Callable[[Sequence[ScoredList]], Comparison],
        normalise: Normalise,
        unknown: Collection[str] | None = None,
    ) -> None:
        """Add the lists of a file, unless there are none."""
        if scored:
            keys = ((item.evaluated.id, self.normaliser.normalise(item.reference), item) for item in scored)
            self.files[file] = EvaluatedFile(index_lists(keys), compare, normalise, unknown)

    def compare(self, own_lists: bool) -> None:
        """Make the rows: on the lists that all files have, or on each file's own if there are none."""
        shared = find_shared_lists([evaluated.lists for evaluated in self.files.values()])
        self.n_shared = len(shared)
        for file, evaluated in self.files.items():
            lists = [evaluated.lists[key] for key in shared] or list(evaluated.lists.values())
            self._add_part(file, evaluated.compare(lists), "")
        if own_lists and shared and len(self.files) > 1:
            for file, evaluated in self.files.items():
                if len(evaluated.lists) > len(shared):
                    comparison = evaluated.compare(list(evaluated.lists.values()))
                    self._add_part(file, comparison, OWN_LISTS)
        corrected = correct_verdicts([part.verdicts for part in self.parts])
        self.parts = [
            replace(part, verdicts=verdicts) for part, verdicts in zip(self.parts, corrected, strict=True)
        ]

    def _add_part(self, file: str, comparison: Comparison, suffix: str) -> None:
        significance = Significance(comparison)
        self.parts.append(
            FileResults(
                file,
                suffix,
                comparison,
                significance,
                judge_rows(comparison, significance),
                find_verdicts(comparison, significance),
                find_oracle_by_depth(comparison.scored),
            )
        )

    def row_name(self, part: FileResults, row: Row) -> str:
        """The name under which a row is shown: with its file, if there are several files."""
        several = len(self.files) > 1 and row.name != part.file
        return (f"{part.file}: {row.name}" if several else row.name) + part.suffix

    def named_results(self) -> Iterator[tuple[str, FileResults, Result]]:
        """Yield all rows with the names under which they are shown."""
        for part in self.parts:
            for result in part.results:
                yield self.row_name(part, result.row), part, result

    @property
    def notes(self) -> list[str]:
        """What is to be said about the rows."""
        notes = (note for part in self.parts for note in part.comparison.notes)
        return list(dict.fromkeys(filter(None, (self.spacing, *notes))))

    @property
    def spacing(self) -> str:
        """Advice if words were counted in texts without spaces between words, otherwise empty."""
        if self.counting.unit != "word":
            return ""
        lists = (pair for evaluated in self.files.values() for pair in evaluated.lists.items())
        return remark_on_spacing(text for key, item in lists for text in (key[1], item.words[0]))

    @property
    def other_lists(self) -> dict[str, int]:
        """Number of lists of each file that are not shared."""
        return {file: len(evaluated.lists) - self.n_shared for file, evaluated in self.files.items()}

    def choose_row(self, part: FileResults, system: str | None) -> Row:
        """Find the row whose errors are analysed, as ``comparison.row.choose_row``."""
        rows = [result.row for result in part.results]
        return rows[choose_row([(self.row_name(part, row), row) for row in rows], system)]

    def align(self, part: FileResults, system: str | None) -> Iterator[AlignedList]:
        """Align the texts of a row with the references; raises ConfigError as ``choose_row``."""
        row = self.choose_row(part, system)
        return align_rows(part.comparison.scored, part.comparison.first_pass, row, self._aligner(part))

    def analyse(self, part: FileResults, system: str | None) -> ErrorAnalysis:
        """Analyse the errors of a row; raises ConfigError as ``choose_row``."""
        row = self.choose_row(part, system)
        return analyse_errors(part.comparison, row, self._aligner(part), self.files[part.file].unknown)

    def _aligner(self, part: FileResults) -> Aligner:
        """Aligns texts as the errors of a file were counted."""
        return Aligner(self.files[part.file].normalise, self.counting)

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to JSON data, with the same keys for one file and for several."""
        return {
            "systems": [
                {"name": name, "file": part.file, **result.to_dict()}
                for name, part, result in self.named_results()
            ],
            "shared_lists": self.n_shared,
            "other_lists": self.other_lists,
            "references": self.perplexity,
            "rejected": len(self.rejected),
            "rejected_lists": self.rejected.reasons,
            "counting": self.counting.method,
            "unit": self.counting.unit,
            "normaliser": self.normaliser.settings.describe(),
            "verdicts": [
                {"file": part.file, **verdict.to_dict()} for part in self.parts for verdict in part.verdicts
            ],
            "notes": self.notes,
            "intervals": [
                {
                    "file": part.file,
                    "drawn": part.significance.bootstrap.unit,
                    "units": part.significance.bootstrap.n_units,
                    "warning": part.significance.bootstrap.warning,
                }
                for part in self.parts
            ],
            "oracle_by_depth": {
                part.label: {
                    str(depth): to_percent(counts.rate) for depth, counts in part.oracle_by_depth.items()
                }
                for part in self.parts
            },
        }

"""Evaluate files of lists under the same settings: errors, rows of systems, intervals and verdicts.

``Evaluation.add_file`` and ``add_scored_file`` take the lists of each file. ``compare`` then makes the rows
on the lists that all files share, and ``to_dict`` converts the results to JSON data. The module neither reads
options nor prints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from rescorer.errors import InputError, pluralise
from rescorer.evaluation.error_analysis import (
    AlignedList,
    Aligner,
    ErrorAnalysis,
    align_rows,
    analyse_errors,
    find_oracle_by_depth,
    find_unknown_words,
)
from rescorer.evaluation.error_rate import CountingSettings, WordErrors
from rescorer.evaluation.false_alarms import describe_over_boosting, find_over_boosting
from rescorer.evaluation.folds import count_tuning_lists
from rescorer.evaluation.list_errors import ListKey, Selection, find_shared_lists, index_lists, to_percent
from rescorer.evaluation.rate_tables import Signature
from rescorer.evaluation.scored_lists import (
    MeasuredList,
    count_lists,
    describe_too_long,
    score_lists,
    score_references,
    sum_scores,
)
from rescorer.evaluation.significance import (
    Difference,
    Result,
    Significance,
    SystemVerdict,
    correct_verdicts,
    find_groups,
    find_verdicts,
    judge_rows,
    share_p_values,
)
from rescorer.evaluation.statistics import bootstrap, correct_holm, units_needed
from rescorer.evaluation.systems import (
    Comparison,
    Row,
    choose_row,
    compare_file,
    compare_rules,
    compare_systems,
    count_by_list,
    drop_models,
    weights_by_system,
)
from rescorer.evaluation.word_statistics import describe_equated, find_equated
from rescorer.extensions import used_rerankers
from rescorer.pipeline import Rescorer
from rescorer.reranking.reranker import replace_by_base
from rescorer.text import Normaliser, remark_on_spacing
from rescorer.types import NBestList, Weights
from rescorer.weights import phrase_weight

OWN_LISTS = ", all its lists"
"""Suffix of the names of rows about all lists of a file, where other rows are about the shared lists only."""


@dataclass(frozen=True)
class EvaluatedFile:
    """The lists of a file that could be evaluated."""

    lists: Mapping[ListKey, MeasuredList]
    compare: Callable[[Sequence[MeasuredList]], Comparison]
    """Makes the rows for some of the lists."""
    unknown: Collection[str] | None
    """Words of the references that no language model knows; None without models."""


@dataclass(frozen=True)
class FileResults:
    """The rows of one file, on some of its lists."""

    file: str
    suffix: str
    """Suffix of the names of the rows: empty, or ``OWN_LISTS``."""
    comparison: Comparison
    significance: Significance
    results: Sequence[Result]
    verdicts: Sequence[SystemVerdict]
    oracle_by_depth: Mapping[int, WordErrors]

    @property
    def label(self) -> str:
        """Name of the file, with the suffix of its rows."""
        return self.file + self.suffix


@dataclass
class Evaluation:
    """Files of lists that are evaluated together, and the rows that ``compare`` makes of them."""

    counting: CountingSettings
    normaliser: Normaliser
    """Converts texts to the words in which errors are counted. The words of references also identify the
    lists that several files share."""
    selection: Selection
    first_pass: Weights | None
    """Weights that define the first pass; None for the order of the lists."""
    generate: bool = False
    """Whether hypotheses are generated from phrases."""
    on_rejected: Callable[[InputError], object] = lambda error: None
    """Called with the error of each list that cannot be evaluated."""
    on_warning: Callable[[str], object] = lambda line: None
    """Called with a warning about a file or the weights, in one line."""
    labels: dict[str, str] = field(default_factory=dict)
    """Names under which files are shown, by file; other files are shown under their own names."""
    files: dict[str, EvaluatedFile] = field(default_factory=dict)
    parts: list[FileResults] = field(default_factory=list)
    shared: Sequence[ListKey] = ()
    """The lists that all files have. If there are none, each row is about all lists of its file."""
    perplexity: dict[str, Any] = field(default_factory=dict)
    """Scores of the references, by file."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Warnings about the weights, by file."""

    def add_file(self, file: str, lists: Sequence[NBestList], *, is_only_file: bool) -> None:
        """Add the lists of a file, whose hypotheses are ranked by their order in the file.

        Args:
            is_only_file: whether this is the only file; it then also gets rows of simple rules and of the
                oracle.
        """
        normalise = self.normaliser.normalise
        scored, errors = count_lists(normalise, lists, self.first_pass, self.counting, self.selection)
        for error in errors:
            self.on_rejected(error)
        self._add(file, scored, partial(compare_rules if is_only_file else compare_file, name=file))

    def add_scored_file(
        self,
        file: str,
        lists: Sequence[NBestList],
        rescorer: Rescorer,
        weights: Weights,
        *,
        with_tuning: bool,
    ) -> None:
        """Score the lists of a file with all models of a bundle, and add them.

        Args:
            weights: weights of the systems that are compared; see ``weights_by_system``.
            with_tuning: whether systems also get rows with weights tuned by cross-validation.
        """
        settings = self.first_pass, self.counting, self.selection
        scored, errors = score_lists(rescorer, lists, weights, *settings, generate=self.generate)
        for error in errors:
            self.on_rejected(error)
        if not scored:
            return
        if too_long := describe_too_long(scored, rescorer.bundle):
            self.on_warning(f"{file}: warning: {too_long}")
        effective = rescorer.ranker.effective_weights(weights)
        if n_worse := find_over_boosting(rescorer, scored, effective):
            over_boosts = describe_over_boosting(n_worse, len(scored), phrase_weight(effective))
            self.on_warning(f"{file}: warning: {over_boosts}; `rescorer tune` finds one that does not")
        bundle, counted = rescorer.bundle, self.normaliser
        texts = ([hypothesis.text for hypothesis in nbest.hypotheses] for nbest in lists)
        equated = find_equated(texts, bundle.normaliser, counted)
        if equated.beyond:
            self.on_warning(f"{file}: warning: {describe_equated(equated)}")
        rerankers = used_rerankers(bundle, weights)
        if n_seen := count_tuning_lists(weights, lists, rerankers):
            overlap = f"{n_seen} of these {pluralise(len(lists), 'list')}"
            message = f"weights {weights.name!r} were tuned on {overlap}: errors are optimistic"
            self.on_warning(f"{file}: {message}")
            self.warnings[file] = message
        references = score_references(rescorer, scored, weights)
        self.perplexity[file] = sum_scores(references).to_dict()
        unread = {
            word for text in references for word, flag in zip(text.words, text.unknown, strict=True) if flag
        }
        spoken = [" ".join(item.readings[0]) for item in scored]
        unknown = find_unknown_words(spoken, unread, bundle.normaliser.normalise, counted.normalise)
        compare = partial(
            compare_systems,
            systems=weights_by_system(rescorer, weights, with_tuning),
            with_tuning=with_tuning,
            word_only=drop_models(replace_by_base(weights, rerankers), self.first_pass),
            rescorer=rescorer,
        )
        self._add(file, scored, compare, unknown)

    def _add(
        self,
        file: str,
        scored: Sequence[MeasuredList],
        compare: Callable[[Sequence[MeasuredList]], Comparison],
        unknown: Collection[str] | None = None,
    ) -> None:
        """Add the lists of a file, unless there are none."""
        if scored:
            keys = ((item.evaluated.id, self.normaliser.normalise(item.reference), item) for item in scored)
            self.files[file] = EvaluatedFile(index_lists(keys), compare, unknown)

    def compare(self, own_lists: bool) -> None:
        """Make the rows, about the lists that all files have or, if there are none, about all lists of each
        file.

        Args:
            own_lists: whether files that have further lists also get rows about all their lists.
        """
        self.shared = shared = find_shared_lists([evaluated.lists for evaluated in self.files.values()])
        parts = [
            judge_file(file, evaluated.compare, [evaluated.lists[key] for key in shared or evaluated.lists])
            for file, evaluated in self.files.items()
        ]
        if own_lists and shared and len(self.files) > 1:
            parts += [
                judge_file(file, evaluated.compare, list(evaluated.lists.values()), OWN_LISTS)
                for file, evaluated in self.files.items()
                if len(evaluated.lists) > len(shared)
            ]
        corrected = correct_verdicts([part.verdicts for part in parts])
        self.parts = [
            replace(
                part,
                verdicts=verdicts,
                results=share_p_values(part.results, verdicts, part.comparison.first_pass.name),
            )
            for part, verdicts in zip(parts, corrected, strict=True)
        ]

    @property
    def n_shared(self) -> int:
        """Number of lists that all files have."""
        return len(self.shared)

    @property
    def signature(self) -> Signature | None:
        """How errors are counted, and on which references; None if the files share no list."""
        if not self.shared:
            return None
        return Signature.make(self.counting, self.normaliser.settings, self.shared)

    def row_name(self, part: FileResults, row: Row, *, full: bool = False) -> str:
        """Return the name under which a row is shown. With several files, it includes the name of the
        file.

        Args:
            full: whether files have their whole names, as in JSON, instead of their labels.
        """
        file = part.file if full else self.labels.get(part.file, part.file)
        if row.name == part.file:
            return file + part.suffix
        return (f"{file}: {row.name}" if len(self.files) > 1 else row.name) + part.suffix

    def named_results(self, *, full: bool = False) -> Iterator[tuple[str, FileResults, Result]]:
        """Yield all rows with their names; see ``row_name``."""
        for part in self.parts:
            for result in part.results:
                yield self.row_name(part, result.row, full=full), part, result

    def describe_correction(self) -> str:
        """Say in a clause for how many gains the p-values of rows are corrected; empty for a single gain."""
        n_gains = sum(result.gain is not None for _, _, result in self.named_results())
        has_verdicts = any(
            verdict.baseline == part.comparison.first_pass.name
            for part in self.parts
            for verdict in part.verdicts
        )
        if n_gains < 2:
            return ""
        if not has_verdicts:
            return f", corrected for {n_gains} rows (Holm)"
        return f", corrected as the verdict or, without one, for {n_gains} rows (Holm)"

    def compare_files(self) -> list[Difference]:
        """Compare the error rate of each later file with that of the first, on the lists that all have.

        P-values are corrected for the number of files that are compared (Holm). A file is judged by its last
        row in which language models rank, or by its own order. Nothing is compared if there is a single file,
        or no shared list.
        """
        parts = [part for part in self.parts if not part.suffix]
        if len(parts) < 2 or not self.shared:
            return []
        rows = [part.results[self._find_row(part, None)].row for part in parts]
        counts = [count_by_list(row, part.comparison.scored) for row, part in zip(rows, parts, strict=True)]
        errors, words = (np.stack(columns).astype(np.float64) for columns in zip(*counts, strict=True))
        groups = [[item.evaluated.group for item in part.comparison.scored] for part in parts]
        drawn = bootstrap(errors, words, find_groups(groups))
        gains = [drawn.gain(0, other) for other in range(1, len(rows))]
        p_values = correct_holm([gain.p_value for gain in gains]).tolist()
        first, *others = (self.row_name(part, row) for row, part in zip(rows, parts, strict=True))
        needed = (units_needed(abs(gain.gain), gain.standard_error, drawn.n_units) for gain in gains)
        return [
            Difference(first, name, gain, p_value, drawn.unit, n_needed)
            for name, gain, p_value, n_needed in zip(others, gains, p_values, needed, strict=True)
        ]

    @property
    def notes(self) -> list[str]:
        """Remarks about the rows, such as which rows are left out."""
        notes = (note for part in self.parts for note in part.comparison.notes)
        return list(dict.fromkeys(filter(None, (self.spacing, *notes))))

    @property
    def spacing(self) -> str:
        """Advice if words were counted in texts without spaces between words; otherwise empty."""
        if self.counting.unit != "word":
            return ""
        lists = (pair for evaluated in self.files.values() for pair in evaluated.lists.items())
        return remark_on_spacing(text for key, item in lists for text in (key[1], item.words[0]))

    @property
    def other_lists(self) -> dict[str, int]:
        """Number of lists of each file that are not shared."""
        return {file: len(evaluated.lists) - self.n_shared for file, evaluated in self.files.items()}

    def align(self, part: FileResults, system: str | None) -> Iterator[AlignedList]:
        """Align the texts of a row with the references; raise ConfigError as in ``choose_row``."""
        row, aligner = self._choose(part, system)
        return align_rows(part.comparison.scored, part.comparison.first_pass, row, aligner)

    def analyse(self, part: FileResults, system: str | None) -> ErrorAnalysis:
        """Analyse the errors of a row; raise ConfigError as in ``choose_row``."""
        return analyse_errors(part.comparison, *self._choose(part, system), self.files[part.file].unknown)

    def _choose(self, part: FileResults, system: str | None) -> tuple[Row, Aligner]:
        """Find a row by name, and make an aligner that counts the same errors as the evaluation."""
        row = part.results[self._find_row(part, system)].row
        return row, Aligner(self.normaliser.normalise, self.counting)

    def _find_row(self, part: FileResults, system: str | None) -> int:
        """Find the index of a row by its name, with the label or the whole name of its file."""
        rows = [result.row for result in part.results]
        labelled = [self.row_name(part, row) for row in rows]
        full = [self.row_name(part, row, full=True) for row in rows]
        names = full if system in full else labelled
        return choose_row(list(zip(names, rows, strict=True)), system)

    def to_dict(self, rejected: Sequence[str]) -> dict[str, Any]:
        """Convert the report to JSON data, with the same keys for one file and for several.

        Args:
            rejected: for each list that could not be evaluated, the reason.
        """
        drawn = [(part.file, part.significance.bootstrap) for part in self.parts]
        return {
            "systems": [
                {"name": name, "file": part.file, **result.to_dict()}
                for name, part, result in self.named_results(full=True)
            ],
            "shared_lists": self.n_shared,
            "other_lists": self.other_lists,
            "references": self.perplexity,
            "rejected": len(rejected),
            "rejected_lists": rejected,
            "counting": self.counting.method,
            "unit": self.counting.unit,
            "normaliser": self.normaliser.settings.describe(),
            "signature": str(self.signature) if self.shared else None,
            "comparisons": [difference.to_dict() for difference in self.compare_files()],
            "verdicts": [
                {"file": part.file, **verdict.to_dict()} for part in self.parts for verdict in part.verdicts
            ],
            "notes": self.notes,
            "intervals": [
                {"file": file, "drawn": found.unit, "units": found.n_units, "warning": found.warning}
                for file, found in drawn
            ],
            "oracle_by_depth": {
                part.label: {
                    str(depth): to_percent(counts.rate) for depth, counts in part.oracle_by_depth.items()
                }
                for part in self.parts
            },
        }


def judge_file(
    file: str,
    compare: Callable[[Sequence[MeasuredList]], Comparison],
    lists: Sequence[MeasuredList],
    suffix: str = "",
) -> FileResults:
    """Make the rows of some lists of a file, and judge them. P-values of verdicts are not corrected yet.

    Args:
        compare: makes the rows.
        suffix: as in ``FileResults``.
    """
    comparison = compare(lists)
    significance = Significance(comparison)
    results, verdicts = judge_rows(comparison, significance), find_verdicts(comparison, significance)
    oracle = find_oracle_by_depth(comparison.scored)
    return FileResults(file, suffix, comparison, significance, results, verdicts, oracle)

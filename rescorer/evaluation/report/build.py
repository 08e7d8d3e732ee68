"""Describe compared systems as the data of a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from rescorer.evaluation.comparison.analysis import align_rows
from rescorer.evaluation.comparison.row import Row, choose_row
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.comparison.tuned import MixtureScores
from rescorer.evaluation.error_analysis.aligned_text import Aligner
from rescorer.evaluation.error_analysis.changes import Changes as WordChanges
from rescorer.evaluation.error_analysis.changes import count_changes
from rescorer.evaluation.error_analysis.confusions import Confusions, count_confusions
from rescorer.evaluation.error_rate.counting import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.error_rate.report import Report
from rescorer.evaluation.report.data import (
    Changes,
    Confusion,
    GroupRow,
    Groups,
    Range,
    ReportData,
    Role,
    SystemRow,
    WordChange,
)
from rescorer.evaluation.report.files import analyse_file
from rescorer.evaluation.report.utterances import NamedRow, describe_utterances
from rescorer.evaluation.significance.gains import Significance
from rescorer.evaluation.significance.verdict import Verdict, correct_verdicts, find_verdicts
from rescorer.evaluation.statistics.bootstrap import Gain, Interval
from rescorer.evaluation.statistics.multiple_tests import correct_holm
from rescorer.trie import Words
from rescorer.types import Weights

MAX_UTTERANCES = 500
"""Default number of utterances in a report: about 3 MB of HTML."""
MAX_GROUPS = 100
MAX_WORDS = 15
"""Number of rows in each table of words."""
MARKS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
"""Significance marks by the p-value that they stay below."""


@dataclass(frozen=True)
class ReportedFile:
    """The systems that were compared on the lists of one file."""

    path: str
    """File as it was given, which is the name of the row of its own order."""
    name: str
    """Name of the file in the report."""
    comparison: Comparison
    significance: Significance
    weights: Weights | None = None
    """Weights whose neighbourhood is shown; None if no bundle scored the file."""
    held_out: Sequence[Weights] = ()
    """Weights that cross-validation tuned for each list; empty without tuning."""
    notes: Sequence[str] = ()
    """What readers must know about the lists or the weights."""
    mixture: MixtureScores | None = None
    """Scores of the mixture under the λ that tuning chose from; None if the λ were not tuned."""


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """What a report says about its origin, and how much it shows."""

    title: str
    command: str = ""
    model: str = ""
    counting: CountingSettings = DEFAULT_COUNTING
    rules: str = ""
    """By which rules words are compared, in a few words."""
    max_utterances: int = MAX_UTTERANCES
    system: str | None = None
    """Name of the row that sections about one system describe; None as for ``choose_row``."""


def build_report_data(
    files: Sequence[ReportedFile], normalise: Callable[[str], Words], settings: ReportSettings
) -> ReportData:
    """Describe everything that a report shows.

    Args:
        files: at least one, all about the same lists in the same order.
        normalise: converts references to canonical words.

    Raises:
        ConfigError: there is no row of the name that the settings ask for.
    """
    named = {file.name: _name_rows(file, is_only=len(files) == 1) for file in files}
    rows = [row for file in files for row in named[file.name]]
    systems = tuple(row for file in files for row in _describe_rows(named[file.name], file.significance))
    main = rows[choose_row([(row.name, row.row) for row in rows], settings.system)]
    main_file = next(file for file in files if file.comparison is main.comparison)
    aligner = Aligner(normalise, settings.counting)
    comparison, report = main.comparison, main.row.report
    baseline = next(row for row in named[main_file.name] if row.row is comparison.first_pass)
    bootstrap = main_file.significance.bootstrap
    verdicts = correct_verdicts([find_verdicts(file.comparison, file.significance) for file in files])
    return ReportData(
        title=settings.title,
        command=settings.command,
        version=version("rescorer"),
        model=settings.model,
        counting=describe_counting(settings.counting, settings.rules),
        unit=settings.counting.unit,
        lists=report.total.lists,
        reference_words=report.total.system.reference_words,
        n_groups=sum(bool(group) for group in report.groups),
        baseline=baseline.name,
        system=main.name,
        systems=systems,
        statistics=describe_bootstrap(bootstrap.unit, bootstrap.warning),
        notes=tuple(
            note
            for file, found in zip(files, verdicts, strict=True)
            for note in _list_notes(file, found, is_only=len(files) == 1)
        ),
        remarks=tuple(
            dict.fromkeys(f"{note[0].upper()}{note[1:]}." for file in files for note in file.comparison.notes)
        ),
        files=tuple(
            analyse_file(
                file.name, file.comparison, file.weights, file.held_out, main, normalise, file.mixture
            )
            for file in files
        ),
        changes=_describe_changes(comparison, main.row, aligner) if main is not baseline else None,
        groups=_describe_groups(report),
        utterances=describe_utterances(rows, baseline, main, aligner, settings.max_utterances),
    )


def _name_rows(file: ReportedFile, *, is_only: bool) -> list[NamedRow]:
    """Name the rows of a file uniquely; the first pass is always among them."""
    comparison = file.comparison
    rows = list(comparison.rows)
    if not any(row is comparison.first_pass for row in rows):
        same = [row for row in rows if row.kind == "first pass"]
        rows = [comparison.first_pass, *(row for row in rows if row not in same)]
    names = [
        file.name if row.name == file.path else row.name if is_only else f"{file.name}: {row.name}"
        for row in rows
    ]
    return [
        NamedRow(name, file.name, row, comparison, file.weights)
        for name, row in zip(names, rows, strict=True)
    ]


def _list_notes(file: ReportedFile, verdicts: Sequence[Verdict], *, is_only: bool) -> list[str]:
    """Verdicts about the models of a file, then what else readers must know."""
    sentences = [verdict.sentence().replace(file.path, file.name) for verdict in verdicts]
    prefix = "" if is_only else f"{file.name}: "
    return [f"{prefix}{sentence[0].upper()}{sentence[1:]}." for sentence in (*sentences, *file.notes)]


def _describe_rows(rows: Sequence[NamedRow], significance: Significance) -> list[SystemRow]:
    """Describe the rows of a file; significance marks are corrected for the number of systems."""
    roles = [_find_role(named) for named in rows]
    gains = [
        significance.gain(named.row) if role == "system" else None
        for named, role in zip(rows, roles, strict=True)
    ]
    corrected = iter(correct_holm([gain.p_value for gain in gains if gain]).tolist())
    return [
        _describe_row(named, role, significance, gain, choose_mark(next(corrected)) if gain else "")
        for named, role, gain in zip(rows, roles, gains, strict=True)
    ]


def _find_role(named: NamedRow) -> Role:
    if named.row is named.comparison.first_pass:
        return "baseline"
    return "oracle" if named.row.kind == "oracle" else "system"


def _describe_row(
    named: NamedRow, role: Role, significance: Significance, gain: Gain | None, mark: str
) -> SystemRow:
    total = named.row.report.total.system
    return SystemRow(
        name=named.name,
        file=named.file,
        role=role,
        wer=None if math.isinf(total.rate) else 100.0 * total.rate,
        errors=total.errors,
        substitutions=total.substitutions,
        deletions=total.deletions,
        insertions=total.insertions,
        sentence_error_rate=100.0 * total.sentence_rate,
        wer_interval=_to_range(significance.interval(named.row)),
        gain=100.0 * gain.gain if gain and math.isfinite(gain.gain) else None,
        gain_interval=_to_range(gain.interval) if gain else None,
        p_value=gain.p_value if gain and gain.interval.is_finite else None,
        mark=mark,
    )


def choose_mark(p_value: float) -> str:
    """Significance mark of a corrected p-value."""
    return next((mark for limit, mark in MARKS if p_value < limit), "")


def _to_range(interval: Interval) -> Range | None:
    """An interval in percent; None if it is infinite."""
    return (100.0 * interval.low, 100.0 * interval.high) if interval.is_finite else None


UNITS = {
    "word": "words",
    "character": "characters",
    "mixed": "words, and characters of scripts without spaces",
}
"""What is counted, by unit."""


def describe_counting(counting: CountingSettings, rules: str = "") -> str:
    """How errors are counted, and by which rules words are compared, in words."""
    method = "sclite's alignment" if counting.method == "sclite" else "fewest errors"
    marks = ["optional words"] * counting.optional_words + ["fragments"] * counting.fragments
    without = "" if counting.alternations else ", without alternatives"
    counted = (
        f"{method} in {UNITS[counting.unit]}" + (f", with {' and '.join(marks)}" if marks else "") + without
    )
    return f"{counted}; words compared by {rules}" if rules else counted


def describe_bootstrap(unit: str, warning: str) -> str:
    """How intervals and p-values were computed."""
    drawn = "whole groups" if unit == "group" else "utterances"
    sentence = (
        f"Intervals of 95 % and two-sided p are from a paired bootstrap over {drawn}; marks are corrected "
        "for the number of rows (Holm)."
    )
    return f"{sentence} {warning[0].upper()}{warning[1:]}." if warning else sentence


def _describe_changes(comparison: Comparison, row: Row, aligner: Aligner) -> Changes:
    aligned = list(align_rows(comparison.scored, comparison.first_pass, row, aligner))
    changes = count_changes((item.before, item.after) for item in aligned)
    return Changes(
        fixed=changes.fixed.total(),
        broken=changes.broken.total(),
        words=_describe_words(changes),
        confusions=_describe_confusions(
            count_confusions(item.before for item in aligned),
            count_confusions(item.after for item in aligned),
        ),
    )


def _describe_words(changes: WordChanges) -> tuple[WordChange, ...]:
    both = changes.fixed + changes.broken
    words = sorted(both, key=lambda word: (-both[word], word))[:MAX_WORDS]
    return tuple(WordChange(word, changes.fixed[word], changes.broken[word]) for word in words)


def _describe_confusions(before: Confusions, after: Confusions) -> tuple[Confusion, ...]:
    counts = [_by_pair(confusions) for confusions in (before, after)]
    pairs = sorted(
        counts[0] | counts[1], key=lambda pair: (-counts[0].get(pair, 0) - counts[1].get(pair, 0), pair)
    )
    return tuple(Confusion(*pair, *(count.get(pair, 0) for count in counts)) for pair in pairs[:MAX_WORDS])


def _by_pair(confusions: Confusions) -> dict[tuple[str, str], int]:
    """All errors by reference and hypothesis word, one of which is empty for deletions and insertions."""
    return {
        **confusions.substitutions,
        **{(word, ""): count for word, count in confusions.deletions.items()},
        **{("", word): count for word, count in confusions.insertions.items()},
    }


def _describe_groups(report: Report) -> Groups | None:
    if len(report.groups) < 2:
        return None
    rows = [
        GroupRow(
            name or "(none)",
            totals.lists,
            totals.system.reference_words,
            totals.first_pass.errors,
            totals.system.errors,
        )
        for name, totals in report.groups.items()
    ]
    rows.sort(key=lambda row: -row.reference_words)
    return Groups(tuple(sorted(rows[:MAX_GROUPS], key=lambda row: row.name)), len(rows))

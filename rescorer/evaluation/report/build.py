"""Describe compared systems as the data of a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from typing import NamedTuple

import numpy as np

from rescorer.evaluation.calibration import (
    Measures,
    collect_outcomes,
    judge_calibration,
    judge_utterance,
)
from rescorer.evaluation.error_analysis import (
    Aligner,
    Alignment,
    align_rows,
    count_changes,
    count_confusions,
)
from rescorer.evaluation.error_rate import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.folds import make_folds
from rescorer.evaluation.list_errors import Report
from rescorer.evaluation.report import data
from rescorer.evaluation.run import Evaluation, FileResults
from rescorer.evaluation.scored_lists import MeasuredList, order_by_weights
from rescorer.evaluation.significance import Result, judge_row
from rescorer.evaluation.statistics import Interval
from rescorer.evaluation.systems import (
    TUNED,
    Comparison,
    MixtureScores,
    Row,
    awaits_weight,
    choose_row,
    count_by_list,
    weights_by_system,
)
from rescorer.pipeline import Rescorer
from rescorer.progress import advance_over
from rescorer.ranking import best_first
from rescorer.trie import Words
from rescorer.types import Weights
from rescorer.weights import totals

N_FOLDS = 10
MIN_LISTS = 20
"""Smallest number of lists for which confidences are judged. With fewer lists, bins say nothing."""
MAX_LISTS = 2_000
"""Largest number of lists whose confidences are judged; of more, these are chosen at even distances. Each
list takes milliseconds, and bins of hundreds of lists hardly change if more are added."""


def describe_confidence(
    scored: Sequence[MeasuredList], weights: Weights, normalise: Callable[[str], Words]
) -> tuple[data.Calibration, ...]:
    """Judge the posteriors of best hypotheses, and their confidences under a map fitted to other folds.

    The result is empty if there are fewer than ``MIN_LISTS`` lists.
    """
    scored = scored[:: -(-len(scored) // MAX_LISTS)]
    ids, groups = [item.evaluated.id for item in scored], [item.evaluated.group for item in scored]
    if len(set(ids)) < MIN_LISTS:
        return ()
    claims = []
    for item in advance_over(scored, "judging confidences", "lists"):
        sums, best = totals(item.components, weights), order_by_weights(item, weights)[0]
        readings = [normalise(" ".join(words)) for words in item.readings]
        claims.append(judge_utterance(item.words, sums, best, readings))
    folds = make_folds(ids, groups, [item.reference for item in scored], N_FOLDS)
    judgement = judge_calibration(collect_outcomes(claims), folds, groups)
    if judgement is None:
        return ()
    held_out = "calibrated, held out"
    return _describe_map("posterior", judgement.before), _describe_map(held_out, judgement.held_out)


def _describe_map(name: str, measures: Measures) -> data.Calibration:
    bins = (
        data.ReliabilityBin(part.confidence, part.right, part.claims) for part in measures.bins if part.claims
    )
    entropy = measures.normalised_cross_entropy
    return data.Calibration(
        name, tuple(bins), measures.expected_calibration_error, None if math.isnan(entropy) else entropy
    )


Cell = tuple[data.WordKind, str]
"""Kind of an aligned word, and the word as recognised, empty for a deletion."""
NOTHING: Cell = ("correct", "")


class Slot(NamedTuple):
    """A column of aligned readings: a reference word, or a gap in which a reading has insertions."""

    reference: str
    """The reference word; empty for a gap."""
    cells: tuple[Cell, ...]
    """One cell per reading."""


def make_slots(readings: Sequence[data.Reading]) -> list[Slot]:
    """Arrange readings (see ``data.Reading``) in columns, one for each reference word.

    If a reference has alternatives, readings may be aligned with different reference words. They are then
    arranged by the position of the reference word.
    """
    columns = [_split(reading.words) for reading in readings]
    n_words = max((len(words) for words, _ in columns), default=0)
    slots: list[Slot] = []
    for position in range(n_words + 1):
        gaps = [insertions.get(position, ()) for _, insertions in columns]
        if any(gaps):
            slots.append(Slot("", tuple(("insertion", " ".join(gap)) if gap else NOTHING for gap in gaps)))
        if position < n_words:
            words = [words[position] if position < len(words) else None for words, _ in columns]
            reference = next(word.reference for word in words if word is not None)
            slots.append(
                Slot(reference, tuple((word.kind, word.hypothesis) if word else NOTHING for word in words))
            )
    return slots


def _split(aligned: Sequence[data.AlignedWord]) -> tuple[list[data.AlignedWord], dict[int, tuple[str, ...]]]:
    """Return the reference words in order, and the insertions before each reference word, by its position."""
    words: list[data.AlignedWord] = []
    insertions: dict[int, tuple[str, ...]] = {}
    for word in aligned:
        if word.kind == "insertion":
            insertions[len(words)] = (*insertions.get(len(words), ()), word.hypothesis)
        else:
            words.append(word)
    return words, insertions


MAX_HYPOTHESES = 5
"""Number of hypotheses with the highest totals that the table of an utterance shows."""


@dataclass(frozen=True)
class NamedRow:
    """A row under the name that the report gives it."""

    name: str
    file: str
    result: Result
    comparison: Comparison
    weights: Weights | None
    """Weights of the file, by which the report computes the totals of hypotheses."""

    @property
    def row(self) -> Row:
        return self.result.row


def describe_utterances(
    rows: Sequence[NamedRow], baseline: NamedRow, system: NamedRow, aligner: Aligner, max_utterances: int
) -> data.Utterances | None:
    """Describe up to ``max_utterances`` utterances; those whose errors changed most come first."""
    scored = system.comparison.scored
    before, after = (count_by_list(named.row, named.comparison.scored)[0] for named in (baseline, system))
    has_changed = baseline.row.winners != system.row.winners
    # the most changed first, then texts that changed without changing errors, then those with errors
    order = np.lexsort((-after, ~has_changed, -np.abs(before - after)))[:max_utterances]
    if not len(order):
        return None
    files = dict.fromkeys(row.file for row in rows)
    described = []
    for index in advance_over(order.tolist(), "describing utterances", "utterances"):
        evaluated = scored[index].evaluated
        tables = (_describe_hypotheses(index, [row for row in rows if row.file == file]) for file in files)
        described.append(
            data.Utterance(
                id=evaluated.id,
                group=evaluated.group,
                reference_words=evaluated.oracle.reference_words,
                baseline_errors=int(before[index]),
                system_errors=int(after[index]),
                readings=_describe_readings(index, rows, aligner),
                tables=tuple(filter(None, tables)),
            )
        )
    return data.Utterances(tuple(described), len(scored))


def _describe_readings(index: int, rows: Sequence[NamedRow], aligner: Aligner) -> tuple[data.Reading, ...]:
    """Describe the texts that the systems chose for a list, each distinct text once."""
    chosen: dict[Words, list[NamedRow]] = {}
    for row in rows:
        item = row.comparison.scored[index]
        chosen.setdefault(item.words[row.row.winners[index]], []).append(row)
    readings = []
    for named in chosen.values():
        item, winner = named[-1].comparison.scored[index], int(named[-1].row.winners[index])
        reference = rows[0].comparison.scored[index].reference
        pairs = aligner.align(reference, item.nbest.hypotheses[winner].text)
        aligned = (data.AlignedWord(one.kind, one.reference or "", one.hypothesis or "") for one in pairs)
        names, errors = tuple(row.name for row in named), item.evaluated.hypotheses[winner].errors
        readings.append(data.Reading(names, tuple(aligned), errors, _describe_generated(item, winner)))
    return tuple(readings)


def _describe_hypotheses(index: int, rows: Sequence[NamedRow]) -> data.HypothesisTable | None:
    """Describe some hypotheses of a list: those that a system chose, and those with the highest totals."""
    weights, scored = rows[0].weights, rows[0].comparison.scored[index]
    if weights is None:
        return None
    names = tuple(scored.components)
    values = totals(scored.components, weights)
    winners: dict[int, list[str]] = {}
    for row in rows:
        winners.setdefault(int(row.row.winners[index]), []).append(row.row.name)
    highest = [int(i) for i in best_first(values)[:MAX_HYPOTHESES]]
    shown = sorted({*winners, *highest}, key=lambda i: (-values[i], i))
    return data.HypothesisTable(
        rows[0].file,
        names,
        tuple(
            data.HypothesisRow(
                rank=i + 1,
                text=" ".join(scored.words[i]),
                errors=scored.evaluated.hypotheses[i].errors,
                total=float(values[i]),
                components=tuple(float(scored.components[name][i]) for name in names),
                chosen_by=tuple(winners.get(i, ())),
                generated=_describe_generated(scored, i),
            )
            for i in shown
        ),
        len(scored.words),
    )


def _describe_generated(scored: MeasuredList, position: int) -> str:
    made = scored.nbest.hypotheses[position].generated
    return "" if made is None else ", ".join(f"{part.phrase} for {part.heard}" for part in made.parts)


def analyse_file(
    file: ReportedFile, system: NamedRow, normalise: Callable[[str], Words]
) -> data.FileAnalysis:
    """Describe the lists of a file and the weights that were applied to them.

    Args:
        system: row to compare with the oracle, if the row belongs to this file; otherwise, the first pass is
            compared.
        normalise: converts references to canonical words.
    """
    comparison, weights, mixture = file.results.comparison, file.weights, file.mixture
    scored = comparison.scored
    problem = data.make_problem(scored, weights) if weights else None
    folds = list(
        {(*fold.by_option().items(), *fold.mixture.items()): fold for fold in file.held_out}.values()
    )
    depth = file.results.oracle_by_depth
    row = system.row if system.comparison is comparison else comparison.first_pass
    total = row.report.total
    return data.FileAnalysis(
        file=file.name,
        lists=len(scored),
        hypotheses=total.hypotheses,
        reference_words=total.system.reference_words,
        weights=weights.name if weights else "",
        weight_values=weights.by_option() if weights else {},
        curves=data.describe_curves(problem, folds) if problem else (),
        share_curves=data.describe_share_curves(scored, weights, folds, mixture)
        if mixture and weights
        else (),
        surface=data.describe_surface(problem, folds) if problem else None,
        depth=data.DepthCurve(
            depths=tuple(depth),
            oracle_errors=tuple(counts.errors for counts in depth.values()),
            first_pass_errors=comparison.first_pass.report.total.system.errors,
            system_errors=total.system.errors,
            system=system.name,
        ),
        calibrations=describe_confidence(scored, weights, normalise) if weights else (),
    )


MAX_UTTERANCES = 500
"""Default number of utterances in a report: about 3 MB of HTML."""
MAX_GROUPS = 100
MAX_WORDS = 15
"""Number of rows in each table of words."""
MAX_MODELS, MAX_MODEL_WORDS = 12, 6
"""Number of models that are described one by one, and of words that each of them helped, and hurt."""
MARKS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
"""Limits and marks of significance: a row gets the first mark whose limit is above the corrected p-value."""


@dataclass(frozen=True)
class ReportedFile:
    """The results of a file, and what else a report says about the file."""

    results: FileResults
    name: str
    """Name of the file in the report."""
    weights: Weights | None = None
    """Weights near which the report shows the error rate; None if no bundle scored the file."""
    system: str = ""
    """Name of the system that has these weights, or weights tuned from them."""
    systems: Mapping[str, Weights] = field(default_factory=dict)
    """Weights of each system before tuning, by its name."""
    notes: Sequence[str] = ()
    """Sentences with facts about the lists or the weights that readers must know."""

    @property
    def held_out(self) -> Sequence[Weights]:
        """Weights that cross-validation tuned for each list; empty without tuning."""
        return self.results.comparison.held_out.get(self.system, ())

    def weights_of(self, row: str) -> Weights | None:
        """Return the weights of a row by its name: those of a system or, for ``NAME, tuned``, tuned ones."""
        if row in self.systems:
            return self.systems[row]
        tuning = self.results.comparison.tunings.get(row.removesuffix(f", {TUNED}"))
        return tuning.tuned[0][1] if tuning else None

    @property
    def mixture(self) -> MixtureScores | None:
        """Scores of the mixture under the λ that tuning chose from; None if the λ were not tuned."""
        return self.results.comparison.mixtures.get(self.system)


def collect_files(
    evaluation: Evaluation,
    names: Sequence[str],
    rescorer: Rescorer | None,
    weights: Weights | None,
    *,
    n_rejected: int,
) -> list[ReportedFile]:
    """Collect what a report needs to know about each evaluated file.

    Args:
        names: names of the files in the report, in the order of the rows.
        weights: weights by which the rescorer scored the files; None without a rescorer.
        n_rejected: number of lists that could not be evaluated.
    """
    files = []
    for number, (results, name) in enumerate(zip(evaluation.parts, names, strict=True)):
        warning = evaluation.warnings.get(results.file)
        notes = [_capitalise(warning)] if warning else []
        if not number and (remark := evaluation.spacing):
            notes.append(f"{_capitalise(remark)}.")
        if not number and n_rejected:
            notes.append(f"{n_rejected:,} list{' was' if n_rejected == 1 else 's were'} rejected")
        system, shown = "", None
        systems: dict[str, Weights] = {}
        if rescorer is not None and weights is not None:
            systems = weights_by_system(rescorer, weights, bool(results.comparison.held_out))
            system, main = list(systems.items())[-1]
            shown = replace(main, name=weights.name)
            if awaits_weight(rescorer, main) and (tuning := results.comparison.tunings.get(system)):
                shown = replace(tuning.tuned[0][1], name="tuned on these lists")
        files.append(ReportedFile(results, name, shown, system, systems, notes))
    return files


def _capitalise(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Settings of a report: title, origin, and how much it shows."""

    title: str
    command: str = ""
    model: str = ""
    counting: CountingSettings = DEFAULT_COUNTING
    rules: str = ""
    """Short description of the rules by which words are compared."""
    max_utterances: int = MAX_UTTERANCES
    system: str | None = None
    """Name of the row that is described by sections about a single system; None as in ``choose_row``."""


def build_report_data(
    files: Sequence[ReportedFile], normalise: Callable[[str], Words], settings: ReportSettings
) -> data.ReportData:
    """Build the content of a report.

    Args:
        files: at least one file, all about the same lists in the same order.
        normalise: converts references to canonical words.

    Raises:
        ConfigError: there is no row with the name ``settings.system``.
    """
    named = {file.name: _name_rows(file, is_only=len(files) == 1) for file in files}
    rows = [row for file in files for row in named[file.name]]
    main = rows[choose_row([(row.name, row.row) for row in rows], settings.system)]
    main_file = next(file for file in files if file.results.comparison is main.comparison)
    aligner = Aligner(normalise, settings.counting)
    comparison, report = main.comparison, main.row.report
    baseline = next(row for row in named[main_file.name] if row.row is comparison.first_pass)
    bootstrap = main_file.results.significance.bootstrap
    notes = []
    for file in files:
        verdicts = (verdict.sentence() for verdict in file.results.verdicts)
        sentences = [sentence.replace(file.results.file, file.name) for sentence in verdicts]
        prefix = "" if len(files) == 1 else f"{file.name}: "
        notes += [f"{prefix}{_capitalise(note)}." for note in (*sentences, *file.notes)]
    return data.ReportData(
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
        systems=tuple(_describe_row(row) for row in rows),
        statistics=describe_bootstrap(bootstrap.unit, bootstrap.warning),
        notes=tuple(notes),
        remarks=tuple(
            dict.fromkeys(f"{_capitalise(note)}." for file in files for note in file.results.comparison.notes)
        ),
        files=tuple(analyse_file(file, main, normalise) for file in files),
        changes=_describe_changes(comparison, main.row, aligner) if main is not baseline else None,
        models=tuple(_describe_models(files, rows, aligner)),
        groups=_describe_groups(report),
        utterances=describe_utterances(rows, baseline, main, aligner, settings.max_utterances),
    )


def _name_rows(file: ReportedFile, *, is_only: bool) -> list[NamedRow]:
    """Give the rows of a file different names; the first pass is always among the rows."""
    comparison, results = file.results.comparison, list(file.results.results)
    if not any(result.row is comparison.first_pass for result in results):
        first = judge_row(comparison.first_pass, file.results.significance)
        results = [first, *(result for result in results if result.row.kind != "first pass")]
    names = [
        file.name
        if result.row.name == file.results.file
        else result.row.name
        if is_only
        else f"{file.name}: {result.row.name}"
        for result in results
    ]
    return [
        NamedRow(name, file.name, result, comparison, file.weights)
        for name, result in zip(names, results, strict=True)
    ]


def _describe_row(named: NamedRow) -> data.SystemRow:
    """Describe a row; its mark is by the corrected p-value."""
    row, gain, total = named.row, named.result.gain, named.row.report.total.system
    role: data.Role = "oracle" if row.kind == "oracle" else "system"
    if row is named.comparison.first_pass:
        role = "baseline"
    return data.SystemRow(
        name=named.name,
        file=named.file,
        role=role,
        wer=None if math.isinf(total.rate) else 100.0 * total.rate,
        errors=total.errors,
        substitutions=total.substitutions,
        deletions=total.deletions,
        insertions=total.insertions,
        sentence_error_rate=100.0 * total.sentence_rate,
        wer_interval=_to_range(named.result.interval),
        gain=100.0 * gain.gain if gain and math.isfinite(gain.gain) else None,
        gain_interval=_to_range(gain.interval) if gain else None,
        p_value=gain.p_value if gain and gain.interval.is_finite else None,
        p_corrected=named.result.p_corrected if named.result.has_p_value else None,
        mark=next((mark for limit, mark in MARKS if named.result.p_corrected < limit), ""),
    )


def _to_range(interval: Interval) -> data.Range | None:
    """Convert an interval to percent; None if it is infinite."""
    return (100.0 * interval.low, 100.0 * interval.high) if interval.is_finite else None


UNITS = {
    "word": "words",
    "character": "characters",
    "mixed": "words, and characters of scripts without spaces",
}
"""Words for the counted things, by unit."""


def describe_counting(counting: CountingSettings, rules: str = "") -> str:
    """Describe how errors are counted, and by which rules words are compared."""
    method = "sclite's alignment" if counting.method == "sclite" else "fewest errors"
    marks = ["optional words"] * counting.optional_words + ["fragments"] * counting.fragments
    without = "" if counting.alternations else ", without alternatives"
    counted = (
        f"{method} in {UNITS[counting.unit]}" + (f", with {' and '.join(marks)}" if marks else "") + without
    )
    return f"{counted}; words compared by {rules}" if rules else counted


def describe_bootstrap(unit: str, warning: str) -> str:
    """Describe how intervals and p-values were computed."""
    drawn = "whole groups" if unit == "group" else "utterances"
    sentence = (
        f"Intervals of 95 % and two-sided p are from a paired bootstrap over {drawn}; p is corrected for the "
        "number of verdicts or, for a row without a verdict, of rows (Holm)."
    )
    return f"{sentence} {warning[0].upper()}{warning[1:]}." if warning else sentence


def _describe_changes(comparison: Comparison, row: Row, aligner: Aligner) -> data.Changes:
    aligned = list(align_rows(comparison.scored, comparison.first_pass, row, aligner))
    changes = count_changes((item.before, item.after) for item in aligned)
    both = changes.fixed + changes.broken
    words = sorted(both, key=lambda word: (-both[word], word))[:MAX_WORDS]
    before = _count_by_pair(item.before for item in aligned)
    after = _count_by_pair(item.after for item in aligned)
    pairs = sorted(before | after, key=lambda pair: (-before.get(pair, 0) - after.get(pair, 0), pair))
    return data.Changes(
        fixed=changes.fixed.total(),
        broken=changes.broken.total(),
        words=tuple(data.WordChange(word, changes.fixed[word], changes.broken[word]) for word in words),
        confusions=tuple(
            data.Confusion(*pair, before.get(pair, 0), after.get(pair, 0)) for pair in pairs[:MAX_WORDS]
        ),
    )


def _describe_models(
    files: Sequence[ReportedFile], rows: Sequence[NamedRow], aligner: Aligner
) -> Iterator[data.ModelChanges]:
    """Describe what each language model changed; of many, the first."""
    by_name = {file.name: file for file in files}
    for named in islice((named for named in rows if named.row.kind == "model"), MAX_MODELS):
        comparison = named.comparison
        pairs = align_rows(comparison.scored, comparison.first_pass, named.row, aligner)
        changes = count_changes((item.before, item.after) for item in pairs)
        before, after = (
            count_by_list(row, comparison.scored)[0] for row in (comparison.first_pass, named.row)
        )
        net = {word: changes.fixed[word] - changes.broken[word] for word in changes.fixed + changes.broken}
        ordered = sorted((word for word in net if net[word]), key=lambda word: (-net[word], word))
        helped = [word for word in ordered if net[word] > 0][:MAX_MODEL_WORDS]
        hurt = [word for word in ordered if net[word] < 0][-MAX_MODEL_WORDS:]
        weights = by_name[named.file].weights_of(named.row.name)
        yield data.ModelChanges(
            system=named.name,
            weights={name: value for name, value in weights.by_option().items() if value} if weights else {},
            better=int((after < before).sum()),
            worse=int((after > before).sum()),
            fixed=changes.fixed.total(),
            broken=changes.broken.total(),
            words=tuple(
                data.WordChange(word, changes.fixed[word], changes.broken[word]) for word in helped + hurt
            ),
        )


def _count_by_pair(alignments: Iterable[Alignment]) -> dict[tuple[str, str], int]:
    """Count errors by reference word and hypothesis word; one of the two is empty if it is a gap."""
    confusions = count_confusions(alignments)
    return {
        **confusions.substitutions,
        **{(word, ""): count for word, count in confusions.deletions.items()},
        **{("", word): count for word, count in confusions.insertions.items()},
    }


def _describe_groups(report: Report) -> data.Groups | None:
    if len(report.groups) < 2:
        return None
    rows = [
        data.GroupRow(
            name or "(none)",
            totals.lists,
            totals.system.reference_words,
            totals.first_pass.errors,
            totals.system.errors,
        )
        for name, totals in report.groups.items()
    ]
    rows.sort(key=lambda row: -row.reference_words)
    return data.Groups(tuple(sorted(rows[:MAX_GROUPS], key=lambda row: row.name)), len(rows))

"""Choose the utterances that changed most, and describe what each system chose for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.evaluation.comparison.row import Row, count_by_list
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.error_analysis.aligned_text import Aligner
from rescorer.evaluation.report.data import (
    AlignedWord,
    HypothesisRow,
    HypothesisTable,
    Reading,
    Utterance,
    Utterances,
)
from rescorer.ranking import best_first
from rescorer.score_combination import totals
from rescorer.trie import Words
from rescorer.types import Weights

MAX_HYPOTHESES = 5
"""Number of hypotheses with the highest totals in the table of an utterance."""


@dataclass(frozen=True)
class NamedRow:
    """A row under the name that the report gives it."""

    name: str
    file: str
    row: Row
    comparison: Comparison
    weights: Weights | None
    """Weights of the file, for the totals of its hypotheses."""


def describe_utterances(
    rows: Sequence[NamedRow], baseline: NamedRow, system: NamedRow, aligner: Aligner, max_utterances: int
) -> Utterances | None:
    """Describe up to ``max_utterances`` utterances, those whose errors changed most first."""
    scored = system.comparison.scored
    before, after = (count_by_list(named.row, named.comparison.scored)[0] for named in (baseline, system))
    has_changed = baseline.row.winners != system.row.winners
    # the most changed first, then texts that changed without changing errors, then those with errors
    order = np.lexsort((-after, ~has_changed, -np.abs(before - after)))[:max_utterances]
    if not len(order):
        return None
    described = tuple(
        _describe(index, rows, scored[index], int(before[index]), int(after[index]), aligner)
        for index in order.tolist()
    )
    return Utterances(described, len(scored))


def _describe(
    index: int, rows: Sequence[NamedRow], scored: ScoredList, before: int, after: int, aligner: Aligner
) -> Utterance:
    evaluated = scored.evaluated
    files = dict.fromkeys(row.file for row in rows)
    tables = (_describe_hypotheses(index, [row for row in rows if row.file == file]) for file in files)
    return Utterance(
        id=evaluated.id,
        group=evaluated.group,
        reference_words=evaluated.oracle.reference_words,
        baseline_errors=before,
        system_errors=after,
        readings=_describe_readings(index, rows, aligner),
        tables=tuple(table for table in tables if table is not None),
    )


def _describe_readings(index: int, rows: Sequence[NamedRow], aligner: Aligner) -> tuple[Reading, ...]:
    """What systems chose, each distinct text once."""
    chosen: dict[Words, list[str]] = {}
    texts: dict[Words, str] = {}
    errors: dict[Words, int] = {}
    generated: dict[Words, str] = {}
    for row in rows:
        item, winner = row.comparison.scored[index], int(row.row.winners[index])
        words = item.words[winner]
        chosen.setdefault(words, []).append(row.name)
        texts[words] = item.nbest.hypotheses[winner].text
        errors[words] = item.evaluated.hypotheses[winner].errors
        generated[words] = _describe_generated(item, winner)
    reference = rows[0].comparison.scored[index].reference
    return tuple(
        Reading(
            tuple(names),
            tuple(
                AlignedWord(pair.kind, pair.reference or "", pair.hypothesis or "")
                for pair in aligner.align(reference, texts[words])
            ),
            errors[words],
            generated[words],
        )
        for words, names in chosen.items()
    )


def _describe_hypotheses(index: int, rows: Sequence[NamedRow]) -> HypothesisTable | None:
    """Hypotheses of one file with their scores: those that a system chose, and the highest totals."""
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
    return HypothesisTable(
        rows[0].file,
        names,
        tuple(
            HypothesisRow(
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


def _describe_generated(scored: ScoredList, position: int) -> str:
    made = scored.nbest.hypotheses[position].generated
    return "" if made is None else ", ".join(f"{part.phrase} for {part.heard}" for part in made.parts)

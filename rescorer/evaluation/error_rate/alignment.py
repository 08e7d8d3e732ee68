"""Align words as NIST's sclite does, and split the errors into substitutions, deletions and insertions.

A substitution costs 4, an insertion or a deletion 3. Among alignments of equal cost, sclite, walking back
from the end, prefers a pair of words to a gap and an insertion to a deletion. The preference matters, because
alignments of equal cost can differ in their number of errors: three substitutions cost as much as two
deletions and two insertions. References and hypotheses may be networks of words; the cheapest pair of paths
through them is their reading and determines the number of reference words.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from rescorer.evaluation.error_rate.error_counts import WordErrors

GAP_COST, SUBSTITUTION_COST = 3, 4
OPTIONAL_GAP_COST = 2
EMPTY_ARC_COST = 0.001
"""Cost of passing an alternative without words; small, so that it only breaks ties."""


class Token(NamedTuple):
    """A word with its transcription marks."""

    text: str
    optional: bool = False
    """Written ``(word)``: leaving it out is not an error (sclite -D)."""
    fragment: bool = False
    """Starts or ends with a hyphen: any word that agrees in the remaining letters matches (sclite -F)."""


class Arc(NamedTuple):
    """A word of a network."""

    token: Token | None
    """None for an alternative without words."""
    predecessors: tuple[int, ...]
    """Arcs that this arc may follow, in the order in which ties prefer them: 0 is the start, n the n-th
    arc."""


@dataclass(frozen=True, slots=True)
class Network:
    """All readings of a text; every arc comes after its predecessors."""

    arcs: tuple[Arc, ...]
    final_arcs: tuple[int, ...]
    """Arcs that may be last, numbered as in ``Arc.predecessors``."""


def words_match(reference: Token, hypothesis: Token) -> bool:
    """Whether sclite counts two words as equal; a fragment matches any word that agrees in its letters."""
    if reference.fragment or hypothesis.fragment:
        for fragment, word in ((reference.text, hypothesis.text), (hypothesis.text, reference.text)):
            if len(fragment) > 1 and fragment.startswith("-"):
                return word.endswith(fragment[1:])
            if len(fragment) > 1 and fragment.endswith("-"):
                return word.startswith(fragment[:-1])
    return reference.text == hypothesis.text


class _Cell(NamedTuple):
    """The best partial alignment of a reference prefix with a hypothesis prefix."""

    cost: float
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    words: int = 0


def _cost(cell: _Cell) -> float:
    return cell.cost


_FLOAT32 = struct.Struct("f")


def _add_float32(cost: float, increment: float) -> float:
    """Add in single precision, as sclite does.

    On paths through several alternatives without words, sclite's rounding breaks ties and so changes its
    counts.
    """
    rounded: float = _FLOAT32.unpack(_FLOAT32.pack(cost + increment))[0]
    return rounded


def align_network(reference: Network, hypothesis: Network | Sequence[Token]) -> WordErrors:
    """Count errors on the best-matching paths of two networks, by sclite's alignment.

    Costs are added row by row: one row for each arc of the reference, with one cell for the start of the
    hypothesis and for each of its arcs.
    """
    heard = hypothesis if isinstance(hypothesis, Network) else chain(hypothesis)
    row = [_Cell(0)]  # (arcs of the hypothesis + 1,)
    for arc in heard.arcs:
        row.append(_insert(_cheapest(row, arc.predecessors), arc.token))
    rows = {0: row}
    last_use = {arc: number for number, item in enumerate(reference.arcs, 1) for arc in item.predecessors}
    for number, arc in enumerate(reference.arcs, 1):
        rows[number] = _next_row(arc.token, [rows[item] for item in arc.predecessors], heard)
        for predecessor in arc.predecessors:
            if last_use[predecessor] == number and predecessor not in reference.final_arcs:
                rows.pop(predecessor, None)
    best = min((_cheapest(rows[arc], heard.final_arcs) for arc in reference.final_arcs), key=_cost)
    return _sentence_errors(best.substitutions, best.deletions, best.insertions, best.words)


def chain(tokens: Sequence[Token]) -> Network:
    """The network of a text without alternatives."""
    return Network(tuple(Arc(token, (number,)) for number, token in enumerate(tokens)), (len(tokens),))


def _cheapest(row: Sequence[_Cell], arcs: Sequence[int]) -> _Cell:
    """The cheapest cell of some arcs of the hypothesis; the first one where costs are equal."""
    return row[arcs[0]] if len(arcs) == 1 else min((row[arc] for arc in arcs), key=_cost)


def _next_row(word: Token | None, previous: Sequence[Sequence[_Cell]], hypothesis: Network) -> list[_Cell]:
    """Add an arc of the reference; ``previous`` are the rows of the arcs that it may follow."""
    above = (
        previous[0]
        if len(previous) == 1
        else [min(cells, key=_cost) for cells in zip(*previous, strict=True)]
    )
    row = [_delete(above[0], word)]
    for column, (token, predecessors) in enumerate(hypothesis.arcs, 1):
        is_chain = len(predecessors) == 1
        deletion = _delete(above[column], word)
        insertion = _insert(row[predecessors[0]] if is_chain else _cheapest(row, predecessors), token)
        best = deletion if deletion.cost < insertion.cost else insertion
        if word is not None and token is not None:  # the null word is paired with no word
            if is_chain:
                cost, substitutions, deletions, insertions, words = above[predecessors[0]]
            else:  # of equal ones, sclite takes the first arc of the reference
                cheapest = (_cheapest(cells, predecessors) for cells in previous)
                cost, substitutions, deletions, insertions, words = min(cheapest, key=_cost)
            wrong = not words_match(word, token)
            cost = _add_float32(cost, SUBSTITUTION_COST * wrong)
            if cost <= best.cost:
                best = _Cell(cost, substitutions + wrong, deletions, insertions, words + 1)
        row.append(best)
    return row


def _delete(cell: _Cell, word: Token | None) -> _Cell:
    cost, substitutions, deletions, insertions, words = cell
    if word is None:
        return _Cell(_add_float32(cost, EMPTY_ARC_COST), substitutions, deletions, insertions, words)
    if word.optional:  # correct, and still a reference word
        return _Cell(_add_float32(cost, OPTIONAL_GAP_COST), substitutions, deletions, insertions, words + 1)
    return _Cell(_add_float32(cost, GAP_COST), substitutions, deletions + 1, insertions, words + 1)


def _insert(cell: _Cell, token: Token | None) -> _Cell:
    cost, substitutions, deletions, insertions, words = cell
    if token is None:
        return _Cell(_add_float32(cost, EMPTY_ARC_COST), substitutions, deletions, insertions, words)
    if token.optional:  # sclite counts it as a correct reference word
        return _Cell(_add_float32(cost, OPTIONAL_GAP_COST), substitutions, deletions, insertions, words + 1)
    return _Cell(_add_float32(cost, GAP_COST), substitutions, deletions, insertions + 1, words)


COST_SCALE = 1 << 24
"""Factor by which ``align_words`` multiplies costs, so that the remainder can count substitutions."""


def align_words(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Count the errors of a hypothesis by sclite's alignment, without transcription marks.

    Given both lengths and the cost, only the number of substitutions is undetermined. rapidfuzz finds its
    smallest and its largest value among the cheapest alignments; where they differ, ``align_table`` decides.
    """
    gap = GAP_COST * COST_SCALE
    fewest = Levenshtein.distance(
        reference, hypothesis, weights=(gap, gap, SUBSTITUTION_COST * COST_SCALE + 1)
    )
    most = Levenshtein.distance(reference, hypothesis, weights=(gap, gap, SUBSTITUTION_COST * COST_SCALE - 1))
    cost, substitutions = divmod(fewest, COST_SCALE)
    if cost * COST_SCALE - most != substitutions:
        return align_table(reference, hypothesis)
    extra_words = len(hypothesis) - len(reference)
    deletions = (cost - GAP_COST * extra_words - SUBSTITUTION_COST * substitutions) // (2 * GAP_COST)
    return _sentence_errors(substitutions, deletions, deletions + extra_words, len(reference))


def align_table(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Count errors like ``align_words``, by tracing the full cost table back in sclite's order."""
    steps = trace_alignment(reference, hypothesis)
    deletions = sum(j is None for _, j in steps)
    insertions = sum(i is None for i, _ in steps)
    pairs = [(i, j) for i, j in steps if i is not None and j is not None]
    substitutions = sum(reference[i] != hypothesis[j] for i, j in pairs)
    return _sentence_errors(substitutions, deletions, insertions, len(reference))


Step = tuple[int | None, int | None]
"""Positions of a reference word and of the hypothesis word beside it; None on one side for a gap."""


def trace_alignment(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Step]:
    """Return sclite's alignment of two texts without transcription marks, from the first word to the last."""
    table = _cost_table(reference, hypothesis)
    steps: list[Step] = []
    i, j = len(reference), len(hypothesis)
    while i or j:
        wrong = i > 0 and j > 0 and reference[i - 1] != hypothesis[j - 1]
        if i and j and table[i, j] == table[i - 1, j - 1] + SUBSTITUTION_COST * wrong:
            i, j = i - 1, j - 1
            steps.append((i, j))
        elif j and (not i or table[i, j] == table[i, j - 1] + GAP_COST):
            j -= 1
            steps.append((None, j))
        else:
            i -= 1
            steps.append((i, None))
    return steps[::-1]


def _cost_table(reference: Sequence[str], hypothesis: Sequence[str]) -> np.ndarray:
    """Lowest cost of aligning each prefix of the reference with each prefix of the hypothesis."""
    codes: dict[str, int] = {}
    heard = np.array([codes.setdefault(word, len(codes)) for word in hypothesis], dtype=np.int64)
    insertion_costs = GAP_COST * np.arange(len(hypothesis) + 1)
    table = np.empty((len(reference) + 1, len(hypothesis) + 1), dtype=np.int32)
    table[0] = insertion_costs
    for i, word in enumerate(reference):
        row = table[i] + GAP_COST
        paired = table[i, :-1] + SUBSTITUTION_COST * (heard != codes.get(word, -1))
        np.minimum(row[1:], paired, out=row[1:])
        table[i + 1] = np.minimum.accumulate(row - insertion_costs) + insertion_costs
    return table


def _sentence_errors(substitutions: int, deletions: int, insertions: int, words: int) -> WordErrors:
    wrong = int(bool(substitutions or deletions or insertions))
    return WordErrors(substitutions, deletions, insertions, words, sentences=1, sentences_wrong=wrong)

"""Owns the alignment that NIST's sclite makes, and with it the split of errors into kinds.

A substitution costs 4, an insertion or a deletion 3. Of equally cheap ways sclite takes, from the end
backwards, a pair of words before a gap and an insertion before a deletion; another split of the same cost can
have another number of errors (three substitutions cost what two deletions and two insertions do), so that
the order of preference counts. References may be networks of words; the cheapest path through one is its
reading, and says how many reference words there are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from rescorer.evaluation.error_rate.error_counts import WordErrors

GAP, SUBSTITUTION = 3, 4
OPTIONAL_GAP = 2
NOTHING_SAID = 0.001
"""Of passing an alternative without words; small, so that it decides ties alone."""


class Token(NamedTuple):
    """A word with what sclite may know of it."""

    text: str
    optional: bool = False
    """Written ``(word)``: leaving it out is no error (sclite -D)."""
    fragment: bool = False
    """Begins or ends with a hyphen: what agrees with the letters that are there is right (sclite -F)."""


@dataclass(frozen=True, slots=True)
class Arc:
    """A word of a network."""

    token: Token | None
    """None: nothing is said here."""
    before: tuple[int, ...]
    """Arcs that it may follow: 0 is the start, n the n-th arc; in the order that ties prefer."""


@dataclass(frozen=True, slots=True)
class Network:
    """The ways to read a reference; arcs come after those they follow."""

    arcs: tuple[Arc, ...]
    ends: tuple[int, ...]
    """Arcs that may be last, numbered as in ``Arc.before``."""


def same(reference: Token, hypothesis: Token) -> bool:
    """Whether sclite takes two words for the same; fragments agree in the letters they have."""
    if reference.fragment or hypothesis.fragment:
        for one, other in ((reference.text, hypothesis.text), (hypothesis.text, reference.text)):
            if len(one) > 1 and one.startswith("-"):
                return other.endswith(one[1:])
            if len(one) > 1 and one.endswith("-"):
                return other.startswith(one[:-1])
    return reference.text == hypothesis.text


class _Cell(NamedTuple):
    """The best way to a place in both texts."""

    cost: float
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    words: int = 0


def _cost(cell: _Cell) -> float:
    return cell.cost


_SINGLE = struct.Struct("f")


def _sum(cost: float, price: float) -> float:
    """In single precision: where paths pass several alternatives without words, sclite's rounding breaks
    ties, and is part of what it counts."""
    rounded: float = _SINGLE.unpack(_SINGLE.pack(cost + price))[0]
    return rounded


def align_network(reference: Network, hypothesis: Sequence[Token]) -> WordErrors:
    """Errors by sclite's alignment of a hypothesis with the best fitting path of a network."""
    row = [_Cell(0)]  # (hypothesis words + 1,)
    for token in hypothesis:
        row.append(_inserted(row[-1], token))
    rows = {0: row}
    last_use = {before: number for number, arc in enumerate(reference.arcs, 1) for before in arc.before}
    for number, arc in enumerate(reference.arcs, 1):
        rows[number] = _row(arc.token, _best([rows[place] for place in arc.before]), hypothesis)
        for before in arc.before:
            if last_use[before] == number and before not in reference.ends:
                rows.pop(before, None)
    best = min((rows[end][-1] for end in reference.ends), key=_cost)
    return _counts(best.substitutions, best.deletions, best.insertions, best.words)


def _best(rows: Sequence[list[_Cell]]) -> list[_Cell]:
    """The cheapest cell of each column; of equally cheap ones the first."""
    return rows[0] if len(rows) == 1 else [min(cells, key=_cost) for cells in zip(*rows, strict=True)]


def _row(word: Token | None, above: Sequence[_Cell], hypothesis: Sequence[Token]) -> list[_Cell]:
    row = [_deleted(above[0], word)]
    for place, token in enumerate(hypothesis):
        deleted = _deleted(above[place + 1], word)
        inserted = _inserted(row[-1], token)
        gap = deleted if deleted.cost < inserted.cost else inserted
        if word is not None:  # to hear something where nothing is said costs less as an insertion
            cost, substitutions, deletions, insertions, words = above[place]
            wrong = not same(word, token)
            cost = _sum(cost, SUBSTITUTION * wrong)
            if cost <= gap.cost:
                gap = _Cell(cost, substitutions + wrong, deletions, insertions, words + 1)
        row.append(gap)
    return row


def _deleted(cell: _Cell, word: Token | None) -> _Cell:
    cost, substitutions, deletions, insertions, words = cell
    if word is None:
        return _Cell(_sum(cost, NOTHING_SAID), substitutions, deletions, insertions, words)
    if word.optional:  # right, and a word of the reference all the same
        return _Cell(_sum(cost, OPTIONAL_GAP), substitutions, deletions, insertions, words + 1)
    return _Cell(_sum(cost, GAP), substitutions, deletions + 1, insertions, words + 1)


def _inserted(cell: _Cell, token: Token) -> _Cell:
    cost, substitutions, deletions, insertions, words = cell
    if token.optional:  # sclite counts it as a reference word that is right
        return _Cell(_sum(cost, OPTIONAL_GAP), substitutions, deletions, insertions, words + 1)
    return _Cell(_sum(cost, GAP), substitutions, deletions, insertions + 1, words)


PRICE = 1 << 24
"""Of one unit of cost in the search for few or many substitutions; more than a text has words."""


def align_words(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Errors of one hypothesis by sclite's alignment, plain words on both sides.

    Lengths and cost leave one number free, that of substitutions. Its smallest and largest values among the
    cheapest alignments mostly agree, and rapidfuzz finds both; where not, ``align_table`` decides.
    """
    gap = GAP * PRICE
    fewest = Levenshtein.distance(reference, hypothesis, weights=(gap, gap, SUBSTITUTION * PRICE + 1))
    most = Levenshtein.distance(reference, hypothesis, weights=(gap, gap, SUBSTITUTION * PRICE - 1))
    cost, substitutions = divmod(fewest, PRICE)
    if cost * PRICE - most != substitutions:
        return align_table(reference, hypothesis)
    longer = len(hypothesis) - len(reference)
    deletions = (cost - GAP * longer - SUBSTITUTION * substitutions) // (2 * GAP)
    return _counts(substitutions, deletions, deletions + longer, len(reference))


def align_table(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """``align_words`` by the table of all prefixes' costs, walked back in sclite's order of preference."""
    codes: dict[str, int] = {}
    heard = np.array([codes.setdefault(word, len(codes)) for word in hypothesis], dtype=np.int64)
    insertions_alone = GAP * np.arange(len(hypothesis) + 1)
    table = np.empty((len(reference) + 1, len(hypothesis) + 1), dtype=np.int32)
    table[0] = insertions_alone
    for place, word in enumerate(reference):
        row = table[place] + GAP
        paired = table[place, :-1] + SUBSTITUTION * (heard != codes.get(word, -1))
        np.minimum(row[1:], paired, out=row[1:])
        table[place + 1] = np.minimum.accumulate(row - insertions_alone) + insertions_alone
    substitutions = deletions = insertions = 0
    i, j = len(reference), len(hypothesis)
    while i and j:
        wrong = reference[i - 1] != hypothesis[j - 1]
        if table[i, j] == table[i - 1, j - 1] + SUBSTITUTION * wrong:
            substitutions += wrong
            i, j = i - 1, j - 1
        elif table[i, j] == table[i, j - 1] + GAP:
            insertions += 1
            j -= 1
        else:
            deletions += 1
            i -= 1
    return _counts(substitutions, deletions + i, insertions + j, len(reference))


def _counts(substitutions: int, deletions: int, insertions: int, words: int) -> WordErrors:
    wrong = int(bool(substitutions or deletions or insertions))
    return WordErrors(substitutions, deletions, insertions, words, sentences=1, sentences_wrong=wrong)

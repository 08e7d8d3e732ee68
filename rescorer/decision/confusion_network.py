"""Confusion networks: sequences of slots that hold competing words with their posteriors.

Word sequences are added one after the other, the most probable first, which is the pivot; each is aligned
to the network so far by dynamic programming. The cost of an alignment is the expected number of errors
between the sequence and one drawn from the network slot by slot: 1 − P(word) for a word in a slot,
1 − P(no word) for a slot that is passed over, and 1 for a word that needs a new slot. This is the procedure
of SRILM's ``nbest-lattice -use-mesh`` (Mangu, Brill & Stolcke 2000); Hakkani-Tür & Riccardi (2003) describe
the same pivot alignment for lattices. Taking the best word of every slot minimises the expected number of
errors in the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rescorer.decision.word_spans import Span
from rescorer.errors import LimitExceeded
from rescorer.ranking import TIE_DECIMALS
from rescorer.types import ConsensusWord

EMPTY = ""
"""Stands in a slot for the sequences that have no word there."""
COST_SCALE = 1 << 32
"""Factor of the costs, which are integers so that equal costs are recognised as equal."""
MAX_TABLE_CELLS = 5_000_000
"""Largest table of one alignment: words of a sequence times slots. It takes up to 120 MB."""
MAX_CELLS = 200_000_000
"""Largest number of cells of all alignments of a network, which take about 20 ns each."""
SLOT_CELLS = 50
"""Cells that take as long as visiting a slot once, which each alignment does, however short its sequence."""
MIN_POSTERIOR = 1e-9
"""Posterior from which a hypothesis takes part in a network; less cannot decide anything."""
NO_TIME = np.zeros(3)


@dataclass(frozen=True, slots=True)
class Slot:
    """Words that compete for one place."""

    masses: dict[str, float] = field(default_factory=dict)
    """Sum of the weights by word, and by ``EMPTY``, in the order in which they came."""
    times: dict[str, np.ndarray] = field(default_factory=dict)
    """Weighted sums by word of 1, start and end, over the sequences with times: (3,) float64."""
    surfaces: dict[str, str] = field(default_factory=dict)
    """How each word is written in the first sequence that has it here."""

    def add(self, word: str, weight: float, span: Span | None = None, surface: str = "") -> None:
        self.masses[word] = self.masses.get(word, 0.0) + weight
        self.surfaces.setdefault(word, surface or word)
        if span is not None:
            self.times[word] = self.times.get(word, NO_TIME) + weight * np.array((1.0, *span))


class ConfusionNetwork:
    """A network that grows by weighted word sequences.

    >>> network = ConfusionNetwork()
    >>> network.add(("the", "cat"), 0.6)
    >>> network.add(("a", "cat", "sat"), 0.4)
    >>> [word.word for word in network.consensus()]
    ['the', 'cat']
    """

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._total = 0.0
        self._cells = 0

    def add(
        self,
        words: Sequence[str],
        weight: float,
        spans: Sequence[Span] | None = None,
        surfaces: Sequence[str] | None = None,
    ) -> None:
        """Align a word sequence to the network and add its weight to the slots.

        Args:
            words: words, none of them empty.
            weight: positive; only the ratios of the weights matter.
            spans: start and end of each word in seconds; None if they are not known.
            surfaces: each word as it is written in the text; None: as the words are.

        Raises:
            LimitExceeded: the network would take too long; it is unchanged.
        """
        alignment = self._align(words)
        slots: list[Slot] = []
        for slot_index, word_index in alignment:
            slot = Slot() if slot_index is None else self._slots[slot_index]
            if slot_index is None and self._total:
                slot.add(EMPTY, self._total)
            if word_index is None:
                slot.add(EMPTY, weight)
            else:
                span = None if spans is None else spans[word_index]
                slot.add(words[word_index], weight, span, "" if surfaces is None else surfaces[word_index])
            slots.append(slot)
        self._slots = slots
        self._total += weight

    def posteriors(self) -> list[dict[str, float]]:
        """Posteriors by slot, of each word and of ``EMPTY`` (no word there); each slot sums to 1."""
        return [{word: mass / self._total for word, mass in slot.masses.items()} for slot in self._slots]

    def surfaces(self) -> list[dict[str, str]]:
        """How each word is written in the first sequence that has it in a slot, by slot."""
        return [slot.surfaces for slot in self._slots]

    def consensus(self) -> tuple[ConsensusWord, ...]:
        """The best word of each slot, except where having no word is best.

        Posteriors are rounded before they are compared, and ties go to the word that came first. Times are
        means over the sequences that have the word there and have times, weighted by their weights.
        """
        return tuple(self._best_words())

    def _best_words(self) -> Iterator[ConsensusWord]:
        for slot, posteriors in zip(self._slots, self.posteriors(), strict=True):
            best = max(posteriors, key=lambda word: round(posteriors[word], TIE_DECIMALS))
            if best == EMPTY:
                continue
            start_s = duration_s = None
            if best in slot.times:
                mass, start, end = slot.times[best].tolist()
                start_s, duration_s = start / mass, (end - start) / mass
            text = slot.surfaces[best] if slot.surfaces[best] != best else ""
            yield ConsensusWord(best, min(posteriors[best], 1.0), start_s, duration_s, text)

    def word_posteriors(self, words: Sequence[str]) -> list[float]:
        """Posterior of each word of a sequence in the slot to which it is aligned; the network is unchanged.

        Raises:
            LimitExceeded: the alignment would take too long.
        """
        posteriors = [0.0] * len(words)
        for slot_index, word_index in self._align(words):
            if slot_index is not None and word_index is not None:
                mass = self._slots[slot_index].masses.get(words[word_index], 0.0)
                posteriors[word_index] = mass / self._total
        return posteriors

    def _align(self, words: Sequence[str]) -> list[tuple[int | None, int | None]]:
        """Return the slots and words that the cheapest alignment pairs; None for a new slot or no word.

        Among alignments of equal cost, walking back from the end, a word in a slot is preferred to a slot
        without a word, and that to a new slot.
        """
        if not self._slots:
            return [(None, i) for i in range(len(words))]
        self._count_cells(len(words) + 1, len(self._slots) + 1)
        pair_costs, pass_costs = self._pair_costs(words), self._pass_costs()
        table = fill_table(pair_costs, pass_costs)
        return trace_back(table, pair_costs, pass_costs)

    def _count_cells(self, rows: int, columns: int) -> None:
        cells = (rows + SLOT_CELLS) * columns
        if rows * columns > MAX_TABLE_CELLS or self._cells + cells > MAX_CELLS:
            raise LimitExceeded(
                f"a confusion network compares more than {MAX_TABLE_CELLS:,} pairs of words and slots for "
                f"one of these hypotheses, or {MAX_CELLS:,} for all of them; send fewer or shorter "
                "hypotheses, or use the decision rule maximum",
                field="hypotheses",
            )
        self._cells += cells

    def _pair_costs(self, words: Sequence[str]) -> np.ndarray:
        """Costs of each word in each slot, (L, S) int64."""
        rows = {word: row for row, word in enumerate(dict.fromkeys(words))}
        found = [
            (rows[word], s, slot.masses[word])
            for s, slot in enumerate(self._slots)
            for word in rows.keys() & slot.masses.keys()
        ]
        costs = np.full((len(rows), len(self._slots)), COST_SCALE, dtype=np.int64)
        if found:
            row_indices, slot_indices, masses = zip(*found, strict=True)
            costs[row_indices, slot_indices] = self._costs_of(masses)
        return costs[[rows[word] for word in words]]

    def _pass_costs(self) -> np.ndarray:
        """Costs of passing over each slot, (S,) int64."""
        return self._costs_of([slot.masses.get(EMPTY, 0.0) for slot in self._slots])

    def _costs_of(self, masses: Sequence[float]) -> np.ndarray:
        """Costs 1 − mass / total, in integers."""
        shares = np.array(masses) / self._total
        return COST_SCALE - np.rint(COST_SCALE * shares).astype(np.int64)


def fill_table(pair_costs: np.ndarray, pass_costs: np.ndarray) -> np.ndarray:
    """Compute the cost of aligning the first i words to the first s slots, (L + 1, S + 1) int64.

    Passing over slots within a row is a running minimum, after the costs of passing over all slots from the
    beginning have been subtracted.
    """
    passed = np.concatenate(([0], np.cumsum(pass_costs)))
    table = np.empty((len(pair_costs) + 1, len(passed)), dtype=np.int64)
    table[0] = passed
    for i, costs in enumerate(pair_costs):
        row = table[i] + COST_SCALE
        np.minimum(row[1:], table[i, :-1] + costs, out=row[1:])
        table[i + 1] = np.minimum.accumulate(row - passed) + passed
    return table


def trace_back(
    table: np.ndarray, pair_costs: np.ndarray, pass_costs: np.ndarray
) -> list[tuple[int | None, int | None]]:
    """Return the cheapest alignment of a table, as pairs of slot and word from first to last."""
    alignment: list[tuple[int | None, int | None]] = []
    i, s = table.shape[0] - 1, table.shape[1] - 1
    while i or s:
        if i and s and table[i, s] == table[i - 1, s - 1] + pair_costs[i - 1, s - 1]:
            i, s = i - 1, s - 1
            alignment.append((s, i))
        elif s and table[i, s] == table[i, s - 1] + pass_costs[s - 1]:
            s -= 1
            alignment.append((s, None))
        else:
            i -= 1
            alignment.append((None, i))
    alignment.reverse()
    return alignment


def build_network(
    words: Sequence[Sequence[str]],
    posteriors: Sequence[float],
    spans: Sequence[Sequence[Span] | None] | None = None,
    surfaces: Sequence[Sequence[str] | None] | None = None,
) -> ConfusionNetwork:
    """Build the network of a list.

    Args:
        words: canonical words of each hypothesis, the most probable first.
        posteriors: of each hypothesis; those below ``MIN_POSTERIOR`` are left out.
        spans: start and end of each word in seconds, by hypothesis; None where they are not known.
        surfaces: each word as it is written, by hypothesis.

    Raises:
        LimitExceeded: the network would take too long.
    """
    network = ConfusionNetwork()
    nothing = [None] * len(words)
    parts = zip(words, posteriors, spans or nothing, surfaces or nothing, strict=True)
    for hypothesis, posterior, times, written in parts:
        if posterior >= MIN_POSTERIOR:
            network.add(hypothesis, posterior, times, written)
    return network

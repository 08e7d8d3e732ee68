"""Word-by-word consensus of the hypotheses of one list, or of the lists of several recognisers (ROVER).

Word sequences with their posteriors are aligned into a confusion network, whose slots hold competing words.
The consensus consists of the word that wins in each slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rescorer.errors import ConfigError, LimitExceeded
from rescorer.ranking import TIE_DECIMALS, best_first, posteriors
from rescorer.trie import Words
from rescorer.types import MAX_NUMBER, ConsensusWord

Span = tuple[float, float]  # start and end of a word in seconds
WORDS_FIELD, TIMES = "words", ("start_s", "duration_s")
"""Name of the field of a hypothesis that has one object per word, and names of the times in such an object.
An example of an object: ``{"word": "we", "start_s": 0.4, "duration_s": 0.2}``."""


def find_spans(
    fields: Mapping[str, Any], words: Words, normalise: Callable[[str], Words]
) -> tuple[Span, ...] | None:
    """Return the start and end of each canonical word, read from the fields that the client sent.

    The time of a token that is normalised to several words, such as ``we_did``, is divided equally among
    these words; a token without canonical words, such as ``<sil>``, is skipped.

    Args:
        fields: fields of a hypothesis, as plain data or a protobuf ``Struct``.
        words: canonical words of the hypothesis.

    Returns:
        None if the fields have no times, or have them for other words.
    """
    if WORDS_FIELD not in fields:
        return None
    entries = fields[WORDS_FIELD]
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return None
    spans: list[Span] = []
    spoken: list[str] = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not all(key in entry for key in ("word", *TIMES)):
            return None
        token, start_s, duration_s = (entry[key] for key in ("word", *TIMES))
        if not (isinstance(token, str) and is_time(start_s) and is_time(duration_s)):
            return None
        if not is_time(start_s + duration_s):  # too large for a number
            return None
        parts = normalise(token)
        share_s = duration_s / max(len(parts), 1)
        spoken.extend(parts)
        spans.extend((start_s + i * share_s, start_s + (i + 1) * share_s) for i in range(len(parts)))
    return tuple(spans) if tuple(spoken) == words else None


def is_time(value: object) -> bool:
    """Whether a value is a finite number of seconds, at least 0, and not a boolean."""
    return type(value) in (int, float) and 0 <= value <= MAX_NUMBER  # type: ignore[operator]


EMPTY = ""  # key of a slot that stands for "no word here"
COST_SCALE = 1 << 32  # costs are integers, multiplied by this and rounded, so that equal costs compare equal
MAX_TABLE_CELLS = 5_000_000
"""Largest table of one alignment, in cells: words of a sequence times slots. It takes up to 120 MB."""
MAX_CELLS = 200_000_000  # largest number of cells of all alignments of a network; one takes 20 ns
SLOT_CELLS = 50
"""Time of visiting a slot, in cells. Every alignment visits all slots, even for a short sequence."""
MIN_POSTERIOR = 1e-9  # hypotheses below it are left out: they cannot change the consensus
NO_TIME = np.zeros(3)


@dataclass(frozen=True, slots=True)
class Slot:
    """Words that compete for one place in a confusion network."""

    masses: dict[str, float] = field(default_factory=dict)
    """For each word and ``EMPTY``, in order of first appearance, the sum of the weights of its sequences."""
    times: dict[str, np.ndarray] = field(default_factory=dict)
    """(3,) float64 by word, over the sequences with times: sums of weights, of weighted starts and of
    weighted ends."""
    surfaces: dict[str, str] = field(default_factory=dict)
    """Spelling of each word, from the first sequence that has the word in this slot."""

    def add(self, word: str, weight: float, span: Span | None = None, surface: str = "") -> None:
        self.masses[word] = self.masses.get(word, 0.0) + weight
        self.surfaces.setdefault(word, surface or word)
        if span is not None:
            self.times[word] = self.times.get(word, NO_TIME) + weight * np.array((1.0, *span))


class ConfusionNetwork:
    """A sequence of slots, each with competing words and their posteriors.

    Word sequences are added one after the other, the most probable first. Each is aligned to the network so
    far by dynamic programming. The cost of an alignment is the expected number of errors between the sequence
    and one that is drawn from the network slot by slot: 1 − P(word) for a word in a slot, 1 − P(no word) for
    a slot that is skipped, and 1 for a word that needs a new slot. This is the procedure of SRILM's
    ``nbest-lattice -use-mesh`` (Mangu, Brill & Stolcke 2000); Hakkani-Tür & Riccardi (2003) describe it for
    lattices. Taking the best word of every slot minimises the expected number of errors in the network.

    >>> network = ConfusionNetwork()
    >>> network.add(("the", "cat"), 0.6)
    >>> network.add(("a", "cat", "sat"), 0.4)
    >>> [word.word for word in network.consensus()]
    ['the', 'cat']
    """

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._slots_with: dict[str, list[Slot]] = {}  # by word
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
            spans: start and end of each word in seconds; None if unknown.
            surfaces: spelling of each word in the text; None: that of ``words``.

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
                word, span = words[word_index], None if spans is None else spans[word_index]
                if word not in slot.masses:
                    self._slots_with.setdefault(word, []).append(slot)
                slot.add(word, weight, span, "" if surfaces is None else surfaces[word_index])
            slots.append(slot)
        self._slots = slots
        self._total += weight

    def posteriors(self) -> list[dict[str, float]]:
        """Return, for each slot, the posteriors of its words and of ``EMPTY`` (no word), which sum to 1."""
        return [{word: mass / self._total for word, mass in slot.masses.items()} for slot in self._slots]

    def surfaces(self) -> list[dict[str, str]]:
        """Return, for each slot, the spelling of its words, each from the first sequence that has it."""
        return [slot.surfaces for slot in self._slots]

    def consensus(self) -> tuple[ConsensusWord, ...]:
        """Return the best word of each slot; slots in which no word is best are left out.

        Posteriors are rounded before they are compared, and ties go to the word that came first. Times of a
        word are weighted means over the sequences that have the word in this slot, and have times.
        """
        words = []
        for slot, shares in zip(self._slots, self.posteriors(), strict=True):
            best = max(shares, key=lambda word: round(shares[word], TIE_DECIMALS))
            if best == EMPTY:
                continue
            start_s = duration_s = None
            if best in slot.times:
                mass, start, end = slot.times[best].tolist()
                start_s, duration_s = start / mass, (end - start) / mass
            text = slot.surfaces[best] if slot.surfaces[best] != best else ""
            words.append(ConsensusWord(best, min(shares[best], 1.0), start_s, duration_s, text))
        return tuple(words)

    def _align(self, words: Sequence[str]) -> list[tuple[int | None, int | None]]:
        """Return the pairs of slot and word of the cheapest alignment, with None for a new slot or no word.

        Among equally cheap alignments, the choice is made from the end: first a word in a slot, then a slot
        without a word, and last a new slot.
        """
        if not self._slots:
            return [(None, i) for i in range(len(words))]
        rows, columns = len(words) + 1, len(self._slots) + 1
        cells = (rows + SLOT_CELLS) * columns
        if rows * columns > MAX_TABLE_CELLS or self._cells + cells > MAX_CELLS:
            raise LimitExceeded(
                f"a confusion network compares more than {MAX_TABLE_CELLS:,} pairs of words and slots for "
                f"one of these hypotheses, or {MAX_CELLS:,} for all of them; send fewer or shorter "
                "hypotheses, or use the decision rule maximum",
                field="hypotheses",
            )
        self._cells += cells
        pair_costs = self._pair_costs(words)
        pass_costs = self._costs_of([slot.masses.get(EMPTY, 0.0) for slot in self._slots])
        return trace_back(fill_table(pair_costs, pass_costs), pair_costs, pass_costs)

    def _pair_costs(self, words: Sequence[str]) -> np.ndarray:
        """Return the cost of each word in each slot, (L, S) int64."""
        rows = {word: row for row, word in enumerate(dict.fromkeys(words))}
        costs = np.full((len(rows), len(self._slots)), COST_SCALE, dtype=np.int64)
        index = {id(slot): s for s, slot in enumerate(self._slots)}
        found = [(rows[word], self._slots_with.get(word, ())) for word in rows]
        row_indices = [row for row, slots in found for _ in slots]
        slot_indices = [index[id(slot)] for _, slots in found for slot in slots]
        masses = [slot.masses[word] for word in rows for slot in self._slots_with.get(word, ())]
        costs[row_indices, slot_indices] = self._costs_of(masses)
        return costs[[rows[word] for word in words]]

    def _costs_of(self, masses: Sequence[float]) -> np.ndarray:
        """Return the costs 1 − mass / total, as integers."""
        shares = np.array(masses) / self._total
        return COST_SCALE - np.rint(COST_SCALE * shares).astype(np.int64)


def fill_table(pair_costs: np.ndarray, pass_costs: np.ndarray) -> np.ndarray:
    """Compute the cost of aligning the first i words to the first s slots, (L + 1, S + 1) int64.

    ``pair_costs`` has the cost of each word in each slot, ``pass_costs`` that of skipping each slot. A row is
    computed at once: after the cost of skipping all earlier slots is subtracted, it is a running minimum.
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


def build_confusion_network(
    words: Sequence[Sequence[str]],
    posteriors: Sequence[float],
    spans: Sequence[Sequence[Span] | None] | None = None,
    surfaces: Sequence[Sequence[str] | None] | None = None,
) -> ConfusionNetwork:
    """Build the network of a list from its hypotheses, the most probable first.

    The arguments have one entry per hypothesis, see ``ConfusionNetwork.add``. Hypotheses with posteriors
    below ``MIN_POSTERIOR`` are left out.

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


MAX_DEPTH = 20
"""Largest number of hypotheses of each list that vote. Later ones have tiny posteriors, but take time."""


@dataclass(frozen=True, slots=True)
class RoverSettings:
    """Settings of the vote of systems.

    Raises:
        ConfigError: a value is not one of those described.
    """

    weights: tuple[float, ...]
    """Weight of each system, above 0; only their ratios matter."""
    temperatures: tuple[float, ...]
    """Temperature of each system's posteriors, above 0: they are the softmax of total / temperature."""
    null_weight: float = 1.0
    """Factor by which the votes for "no word" are multiplied, above 0. Higher values give fewer words."""

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.temperatures):
            counts = f"{len(self.weights)} weights and {len(self.temperatures)} temperatures"
            raise ConfigError(f"{counts}; expected one of each per system")
        for name, values in (
            ("weights", self.weights),
            ("temperatures", self.temperatures),
            ("null_weight", (self.null_weight,)),
        ):
            for value in values:
                if not 0 < value <= MAX_NUMBER:
                    raise ConfigError(f"{name}: {value!r}; expected finite numbers above 0")


@dataclass(frozen=True, slots=True)
class SystemList:
    """The list of one system for an utterance."""

    words: tuple[Words, ...]
    """Canonical words of each hypothesis."""
    totals: np.ndarray
    """(H,) float64 in nats."""
    surfaces: tuple[tuple[str, ...], ...] = ()
    """The words of each hypothesis as they are written; empty: they are written like the canonical words."""


@dataclass(frozen=True, slots=True)
class VotedWord:
    """A word that won the vote of its slot."""

    word: str
    posterior: float  # share of the votes, without the ``null_weight``; not calibrated
    surface: str  # the word as the first system that voted for it writes it


@dataclass(frozen=True, slots=True)
class VotingSlot:
    """The words that compete for one place."""

    votes: dict[str, float]  # votes for each word, and for ``EMPTY``; they sum to 1
    surfaces: dict[str, str]  # spelling of each word by the first system that has it


def build_voting_network(lists: Sequence[SystemList], settings: RoverSettings) -> list[VotingSlot]:
    """Align all systems' lists of one utterance, the system with the largest weight first; return the slots.

    Raises:
        LimitExceeded: the network would take too long.
    """
    network = ConfusionNetwork()
    relative = np.array(settings.weights) / max(settings.weights)  # whose sum is finite
    shares = (relative / relative.sum()).tolist()
    for index in np.argsort(-relative, kind="stable").tolist():
        system = lists[index]
        order = best_first(system.totals)[:MAX_DEPTH]
        probabilities = posteriors(system.totals[order], settings.temperatures[index])
        for position, probability in zip(order.tolist(), probabilities.tolist(), strict=True):
            if probability >= MIN_POSTERIOR:
                surfaces = system.surfaces[position] if system.surfaces else None
                network.add(system.words[position], shares[index] * probability, surfaces=surfaces)
    slots = zip(network.posteriors(), network.surfaces(), strict=True)
    return [VotingSlot(votes, surfaces) for votes, surfaces in slots]


def vote(slots: Sequence[VotingSlot], null_weight: float = 1.0) -> tuple[VotedWord, ...]:
    """Take the word with the most votes in each slot, unless "no word" has more votes.

    Votes are rounded before they are compared, and ties go to what came first into the slot.
    """
    words = []
    for slot in slots:
        shares = slot.votes
        votes = {word: share * null_weight if word == EMPTY else share for word, share in shares.items()}
        best = max(votes, key=lambda word: round(votes[word], TIE_DECIMALS))
        if best != EMPTY:
            words.append(VotedWord(best, min(shares[best], 1.0), slot.surfaces[best]))
    return tuple(words)


def combine(lists: Sequence[SystemList], settings: RoverSettings) -> tuple[VotedWord, ...]:
    """Combine the lists of all systems for one utterance into words, by voting word by word (ROVER).

    After Fiscus, "A post-processing system to yield reduced word error rates: recognizer output voting error
    reduction" (ASRU 1997): the outputs are aligned into one confusion network, and the best word of each slot
    wins. Here a system votes with its whole list: a hypothesis counts its posterior in its own list times the
    weight of the system. NIST's confidence of having no word is ``null_weight``.

    Raises:
        LimitExceeded: the lists are too long.
    """
    return vote(build_voting_network(lists, settings), settings.null_weight)

"""Find phrases in hypotheses, and choose those whose credits add up to the most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rescorer.conversation import Phrase
from rescorer.phrases.phrase_set import MAX_PHRASE_SLOTS, PhraseSet, walk
from rescorer.trie import Words

MAX_READINGS = MAX_PHRASE_SLOTS + 1
"""Largest number of ways in which a hypothesis is read: by its words, and with slots for phrases."""

MAX_KEPT_ENDINGS = 65_536
"""Number of phrases at places with different words that are kept while a list is searched, in about 20 MB."""

ENDING_BYTES, MATCH_BYTES = 320, 160
"""Memory of a phrase that is kept while a list is searched, and of one that is found, at most."""


class SlotShare(NamedTuple):
    """A slot in which a phrase is read."""

    slot: str
    """Its word in canonical form."""
    log_probs: tuple[float, ...]
    """Log-probability of each word of the phrase in the slot."""


class PhraseMatch(NamedTuple):
    """A phrase in a hypothesis."""

    phrase: Phrase | None
    """None for the beginning of phrases, at the end of a partial hypothesis."""
    start: int
    """Index of its first word in the hypothesis."""
    n_words: int
    credit: float
    """Its weight times its number of words."""
    origin: PhraseSet
    """The set that has the phrase."""
    slots: tuple[SlotShare, ...] = ()
    """The slots in which it is read besides its words."""


class Ending(NamedTuple):
    """A phrase, or the beginning of phrases, that some words begin with."""

    n_words: int
    credit: float
    phrase: Phrase | None
    origin: PhraseSet


class PhraseSearch:
    """Finds the phrases of some sets in hypotheses.

    Places with the same words after them, as in hypotheses that differ in a few words, are looked up once.

    Args:
        phrase_sets: all sets that are expected.
    """

    def __init__(self, phrase_sets: Sequence[PhraseSet]) -> None:
        self._sets = phrase_sets
        self._longest = max((phrases.longest for phrases in phrase_sets), default=0)
        self._first_words = frozenset[str]().union(*(phrases.root.children for phrases in phrase_sets))
        self._endings: dict[tuple[Words, bool], list[Ending]] = {}
        self._n_kept = 0
        self.steps = 0
        """Number of words that were compared, and of phrases that were weighed, so far."""

    def find(self, words: Words, *, partial: bool = False) -> list[PhraseMatch]:
        """Return the phrases in a hypothesis that do not overlap and have the largest sum of credits.

        Of equal sums, the phrases that begin first, then the longer ones, then those of later sets win.

        Args:
            partial: whether more words will follow. Then last words with which a phrase begins are credited
                too.
        """
        n = len(words)
        best = [0.0] * (n + 1)  # largest sum of credits from each word on
        taken: dict[int, Ending] = {}
        for start in range(n - 1, -1, -1):
            best[start] = best[start + 1]
            if words[start] in self._first_words:
                until = start + self._longest
                for ending in self._find_endings(words[start:until], is_last=partial and until > n):
                    if (total := ending.credit + best[start + ending.n_words]) >= best[start]:
                        best[start], taken[start] = total, ending
        self.steps += n
        return _collect(taken, n)

    def _find_endings(self, words: Words, *, is_last: bool) -> list[Ending]:
        """List what some words begin with: the shorter ones first, of equal length those of later sets last.

        What can never be chosen, because a later one has as many words and as much credit, is left out.

        Args:
            is_last: whether the words are the last ones of a partial hypothesis.
        """
        key = words, is_last
        if (endings := self._endings.get(key)) is None:
            endings = self._look_up(words, is_last=is_last)
            self._n_kept += 1 + len(endings)
            if self._n_kept > MAX_KEPT_ENDINGS:
                self._endings.clear()
                self._n_kept = 1 + len(endings)
            self._endings[key] = endings
        self.steps += len(endings)
        return endings

    def _look_up(self, words: Words, *, is_last: bool) -> list[Ending]:
        by_length: list[list[Ending]] = [[] for _ in range(len(words) + 1)]
        for phrases in self._sets:
            path = walk(phrases.root, words)
            self.steps += min(len(path) + 1, len(words))
            for n_words, node in enumerate(path, start=1):
                if node.phrase >= 0:
                    phrase = phrases.phrases[node.phrase]
                    _add_ending(by_length[n_words], Ending(n_words, phrase.weight * n_words, phrase, phrases))
            if is_last and len(path) == len(words) and path[-1].longer_weight > 0:
                credit = path[-1].longer_weight * len(words)
                _add_ending(by_length[-1], Ending(len(words), credit, None, phrases))
        return [ending for endings in by_length for ending in endings]


def estimate_steps(n_words: int, phrase_sets: Sequence[PhraseSet]) -> int:
    """Return an upper bound of ``PhraseSearch.steps`` for hypotheses with so many words together.

    At each word, as many words as the longest phrase has are compared with each set, and each set has at most
    one phrase, and one beginning of phrases, of each length.
    """
    return n_words * (1 + 3 * sum(phrases.longest for phrases in phrase_sets))


def estimate_bytes(n_words: int, phrase_sets: Sequence[PhraseSet]) -> int:
    """Return an upper bound of the memory for searching hypotheses with so many words together."""
    kept = min(estimate_steps(n_words, phrase_sets), MAX_KEPT_ENDINGS)
    return kept * ENDING_BYTES + n_words * MATCH_BYTES


def _add_ending(endings: list[Ending], new: Ending) -> None:
    """Add an ending to those of the same length, without those that have no more credit."""
    while endings and endings[-1].credit <= new.credit:
        endings.pop()
    endings.append(new)


def find_matches(
    phrase_sets: Sequence[PhraseSet], words: Words, *, partial: bool = False
) -> list[PhraseMatch]:
    """Return the phrases in one hypothesis; see ``PhraseSearch.find``."""
    return PhraseSearch(phrase_sets).find(words, partial=partial)


def fill_slots(
    phrase_sets: Sequence[PhraseSet],
    words: Words,
    matches: Sequence[PhraseMatch],
    known: dict[Words, list[SlotShare]],
) -> list[PhraseMatch]:
    """Add to the phrases of a hypothesis the slots in which they are read, the more probable ones first.

    The first phrases with slots are read in all of them, as long as there are ``MAX_READINGS`` at most; later
    ones as words. The beginning of a phrase fills no slot.

    Args:
        phrase_sets: all sets that are expected, whose phrases share the probability of a slot.
        known: slots of phrases that were found before, to which those of these are added.
    """
    filled, n_more = [], MAX_READINGS
    for match in matches:
        if match.phrase is not None and n_more > 1:
            in_slot = words[match.start : match.start + match.n_words]
            if in_slot not in known:
                known[in_slot] = _find_shares(phrase_sets, in_slot)
            if shares := known[in_slot][: n_more - 1]:
                match = match._replace(slots=tuple(shares))
                n_more //= 1 + len(shares)
        filled.append(match)
    return filled


def _find_shares(phrase_sets: Sequence[PhraseSet], words: Words) -> list[SlotShare]:
    """The slots of a phrase, the more probable ones first."""
    slots = {slot for part in phrase_sets if part.slots for slot in part.find_slots(words)}
    shares = [SlotShare(slot, _share_slot(phrase_sets, slot, words)) for slot in slots]
    return sorted(shares, key=lambda share: (-math.fsum(share.log_probs), share.slot))


def _share_slot(phrase_sets: Sequence[PhraseSet], slot: str, words: Words) -> tuple[float, ...]:
    """Return the log-probability of each word of a phrase in one of its slots.

    Phrases are drawn in proportion to their weights, so that the sum is ln (weight / total): each word has
    its share of the weight of the phrases that begin like this, and the last one also that of ending. Weights
    of equal phrases in different sets add up, like those of all phrases.
    """
    log_masses = np.log(sum(part.slot_masses(slot, words) for part in phrase_sets))
    log_probs = np.diff(log_masses)
    log_probs[-2] += log_probs[-1]
    return tuple(log_probs[:-1].tolist())


def phrase_log_probs(words: Words, matches: Sequence[PhraseMatch]) -> np.ndarray:
    """Return the log-probabilities of each word under the phrase model, (n,); -inf outside of phrases."""
    log_probs = np.full(len(words), -np.inf)
    for match in matches:
        end = match.start + match.n_words
        log_probs[match.start : end] = match.origin.word_log_probs(words[match.start : end])
    return log_probs


def _collect(taken: Mapping[int, Ending], n_words: int) -> list[PhraseMatch]:
    """List the phrases that were chosen, from the first word on."""
    chosen, position = [], 0
    while position < n_words:
        if ending := taken.get(position):
            phrase, length = ending.phrase, ending.n_words
            chosen.append(PhraseMatch(phrase, position, length, ending.credit, ending.origin))
            position += length
        else:
            position += 1
    return chosen

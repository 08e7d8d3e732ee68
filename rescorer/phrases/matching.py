"""Find phrases in hypotheses, and choose those whose credits add up to the most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rescorer.conversation import Phrase
from rescorer.phrases.phrase_set import MAX_PHRASE_SLOTS, PhraseSet
from rescorer.trie import Words

MAX_READINGS = MAX_PHRASE_SLOTS + 1
"""Largest number of ways in which a hypothesis is read: by its words, and with slots for phrases."""


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


def find_matches(
    phrase_sets: Sequence[PhraseSet], words: Words, *, partial: bool = False
) -> list[PhraseMatch]:
    """Return the phrases in a hypothesis that do not overlap and have the largest sum of credits.

    Of equal sums, the phrases that begin first, then the longer ones, then those of later sets are chosen.

    Args:
        partial: whether more words will follow. Then last words with which a phrase begins are credited too.
    """
    best = [0.0] * (len(words) + 1)  # largest sum of credits from each word on
    taken: dict[int, PhraseMatch] = {}
    for start in range(len(words) - 1, -1, -1):
        best[start] = best[start + 1]
        for phrases in phrase_sets:
            if words[start] not in phrases.root.children:
                continue
            total, match = _find_best(phrases, words, start, best, partial=partial)
            if match and (total, match.n_words) >= (best[start], _length(taken.get(start))):
                best[start], taken[start] = total, match
    return _collect(taken, len(words))


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


def _find_best(
    phrases: PhraseSet, words: Words, start: int, best: Sequence[float], *, partial: bool
) -> tuple[float, PhraseMatch | None]:
    """Find the phrase of a set that begins at a word and has, with the best that follows, the largest sum.

    The phrases that begin at a word are counted, not collected: there can be as many as a phrase has words.

    Args:
        best: largest sum of credits from each later word on.

    Returns:
        The sum and the phrase, the longest one of equal sums.
    """
    node, n = phrases.root, len(words)
    total, end, weight, phrase = 0.0, start, 0.0, -1
    for position in range(start, n):
        child = node.children.get(words[position])
        if child is None:
            break
        node = child
        if node.phrase >= 0:
            own = phrases.phrases[node.phrase].weight
            if (value := own * (position + 1 - start) + best[position + 1]) >= total:
                total, end, weight, phrase = value, position + 1, own, node.phrase
    else:
        if partial and node.longer_weight > 0 and (value := node.longer_weight * (n - start)) >= total:
            total, end, weight, phrase = value, n, node.longer_weight, -1
    if end == start:
        return 0.0, None
    found = phrases.phrases[phrase] if phrase >= 0 else None
    return total, PhraseMatch(found, start, end - start, weight * (end - start), phrases)


def _length(match: PhraseMatch | None) -> int:
    return match.n_words if match else 0


def _collect(taken: Mapping[int, PhraseMatch], n_words: int) -> list[PhraseMatch]:
    """List the phrases that were chosen, from the first word on."""
    chosen, position = [], 0
    while position < n_words:
        if position in taken:
            chosen.append(taken[position])
            position += taken[position].n_words
        else:
            position += 1
    return chosen

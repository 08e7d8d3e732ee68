"""Find phrases in hypotheses, and choose those whose credits add up to the most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rescorer.conversation import Phrase
from rescorer.phrases.phrase_set import PhraseSet
from rescorer.trie import Words


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
    slot: str = ""
    """Word of its slot in canonical form; empty if it has none."""
    slot_log_probs: tuple[float, ...] = ()
    """Log-probability of each of its words in its slot."""


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
    phrase_sets: Sequence[PhraseSet], words: Words, matches: Sequence[PhraseMatch]
) -> list[PhraseMatch]:
    """Add to the phrases of a hypothesis that have a slot how probable their words are in it.

    Args:
        phrase_sets: all sets that are expected, whose phrases share the probability of a slot.
    """
    filled = []
    for match in matches:
        if match.slot:
            total = math.fsum(part.slots[match.slot].mass for part in phrase_sets if match.slot in part.slots)
            in_slot = words[match.start : match.start + match.n_words]
            log_probs = match.origin.slot_log_probs(match.slot, in_slot, total)
            match = match._replace(slot_log_probs=log_probs)
        filled.append(match)
    return filled


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
    slot = phrases.slot_of.get(phrase, "")
    return total, PhraseMatch(found, start, end - start, weight * (end - start), phrases, slot)


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

"""Find phrases in hypotheses, and choose those whose credits add up to the most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


def find_matches(
    phrase_sets: Sequence[PhraseSet], words: Words, *, partial: bool = False
) -> list[PhraseMatch]:
    """Return the phrases in a hypothesis that do not overlap and have the largest sum of credits.

    Of equal sums, the phrases that begin first, then the longer ones, then those of later sets are chosen.

    Args:
        partial: whether more words will follow. Then last words with which a phrase begins are credited too.
    """
    found = [match for phrases in phrase_sets for match in _find_all(phrases, words, partial=partial)]
    if len(phrase_sets) > 1:
        found.sort(key=lambda match: match.n_words)
    return _choose(found, len(words)) if found else []


def _find_all(phrases: PhraseSet, words: Words, *, partial: bool) -> list[PhraseMatch]:
    """All occurrences of the phrases of a set, also those that overlap."""
    root, n = phrases.root.children, len(words)
    found = []
    for start, word in enumerate(words):
        node = root.get(word)
        position = start + 1
        while node is not None:
            if node.phrase >= 0:
                phrase = phrases.phrases[node.phrase]
                credit = phrase.weight * (position - start)
                found.append(PhraseMatch(phrase, start, position - start, credit, phrases))
            if position == n:
                if partial and node.children:
                    weight = max(child.best_weight for child in node.children.values())
                    found.append(PhraseMatch(None, start, n - start, weight * (n - start), phrases))
                break
            node = node.children.get(words[position])
            position += 1
    return found


def _choose(found: Sequence[PhraseMatch], n_words: int) -> list[PhraseMatch]:
    """Choose occurrences that do not overlap, from the last word to the first."""
    starting: dict[int, list[PhraseMatch]] = {}
    for match in found:
        starting.setdefault(match.start, []).append(match)
    best = [0.0] * (n_words + 1)  # largest sum of credits from each word on
    taken: dict[int, PhraseMatch] = {}
    for start in range(n_words - 1, -1, -1):
        best[start] = best[start + 1]
        for match in starting.get(start, ()):  # shorter ones first
            total = match.credit + best[start + match.n_words]
            if total >= best[start]:
                best[start], taken[start] = total, match
    chosen, position = [], 0
    while position < n_words:
        if position in taken:
            chosen.append(taken[position])
            position += taken[position].n_words
        else:
            position += 1
    return chosen

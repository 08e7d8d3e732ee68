"""The phrases of one hypothesis, and bounds of the memory that searches for phrases take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rescorer import phrases, sounds
from rescorer.phrases import PhraseMatch, PhraseSearch, PhraseSet
from rescorer.trie import Words

ENDING_BYTES, MATCH_BYTES = 320, 160
"""Memory of a phrase that is kept while a list is searched, and of one that is found, at most."""
WINDOW_BYTES, PLACE_BYTES, PAIR_BYTES, CELL_BYTES = 16, 1_024, 64, 48
"""Memory of a phone of a window, of a place, of a pair, and of a cell, at most."""


def find_matches(
    phrase_sets: Sequence[PhraseSet], words: Words, *, partial: bool = False
) -> list[PhraseMatch]:
    """Return the phrases in one hypothesis; see ``PhraseSearch.find``."""
    return PhraseSearch(phrase_sets).find(words, partial=partial)


def estimate_search_bytes(n_words: int, phrase_sets: Sequence[PhraseSet]) -> int:
    """Return an upper bound of the memory for searching hypotheses with so many words together."""
    lengths = [one.longest for one in phrase_sets]
    compared = phrases.estimate_steps(n_words, lengths) // phrases.STEPS_PER_COMPARISON
    kept = min(compared, phrases.MAX_KEPT_PLACES)
    return kept * ENDING_BYTES + n_words * MATCH_BYTES


def estimate_sound_bytes(n_places: int, lengths: Iterable[int], max_per_phone: float) -> int:
    """Return an upper bound of the memory of ``find_similar``; arguments are those of ``estimate_steps``."""
    counts = Counter(lengths)
    width = sounds.longest_match(max(counts, default=0), max_per_phone)
    pairs = min(n_places * max(counts.values(), default=0), sounds.MAX_PAIRS)
    cells = min(pairs * (width + 1), sounds.MAX_CELLS + width)
    return n_places * (width * WINDOW_BYTES + PLACE_BYTES) + pairs * PAIR_BYTES + cells * CELL_BYTES

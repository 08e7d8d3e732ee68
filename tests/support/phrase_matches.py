"""The phrases in one hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from rescorer.phrases import PhraseMatch, PhraseSearch, PhraseSet
from rescorer.trie import Words


def find_matches(
    phrase_sets: Sequence[PhraseSet], words: Words, *, partial: bool = False
) -> list[PhraseMatch]:
    """Return the phrases in a hypothesis of a list that has no other; see ``PhraseSearch.find``."""
    return PhraseSearch(phrase_sets).find(words, partial=partial)

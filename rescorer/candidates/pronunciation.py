"""Say how canonical words sound: by a dictionary, and by their letters where it does not have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock

from rescorer.candidates.dictionary import find_dictionary, read_dictionary
from rescorer.candidates.letter_to_sound import LetterToSound
from rescorer.candidates.phones import Phones
from rescorer.trie import Words

UNSPOKEN = re.compile(r"[<>\[\]{}%_\d]")
"""Characters of canonical words that are not written as they are said, such as ``<unk>`` and ``b52``."""
MAX_LETTERS = 64
"""Words that are longer, and not in the dictionary, have no pronunciation."""
CACHED_WORDS = 65_536
"""Number of words outside the dictionary whose guessed pronunciations are remembered."""


class Pronouncer:
    """Pronounces canonical words.

    Args:
        words: phones by word, in lower case, at least one word.
    """

    def __init__(self, words: Mapping[str, Phones]) -> None:
        self._words = words
        self._lock = Lock()
        self._guess = lru_cache(CACHED_WORDS)(self._pronounce_letters)

    def pronounce(self, word: str) -> Phones:
        """Return the phones of a word; none if it is not in the dictionary and not written in letters a to z.

        The first word that is not in the dictionary takes longer, because the rules for letters are learned
        from the dictionary then.
        """
        lower = word.lower()
        return self._words.get(lower) or self._guess(lower)

    def learn_letters(self) -> None:
        """Learn the rules for letters now, unless they are known."""
        with self._lock:
            self._rules  # noqa: B018  # a cached property

    def pronounce_all(self, words: Words) -> Phones:
        """Return the phones of words in a row; none if one of them has none."""
        parts = [self.pronounce(word) for word in words]
        return b"".join(parts) if all(parts) else b""

    def _pronounce_letters(self, word: str) -> Phones:
        if len(word) > MAX_LETTERS or UNSPOKEN.search(word):
            return b""
        with self._lock:  # threads that arrive meanwhile wait for the rules
            rules = self._rules
        return rules.pronounce(word)

    @cached_property
    def _rules(self) -> LetterToSound:
        return LetterToSound(self._words)


@lru_cache(1)
def load_pronouncer(path: Path | None = None) -> Pronouncer:
    """Read a dictionary, by default the installed one; later calls with the same path return the same object.

    Raises:
        ConfigError: no dictionary is installed.
        FormatError: the file cannot be read, or is not a dictionary.
    """
    return Pronouncer(read_dictionary(path or find_dictionary()))

"""Say how canonical words sound: by a dictionary, and by their letters where it does not have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
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
"""Number of words outside the dictionary whose guessed pronunciations are remembered; when there are more,
they are forgotten."""
GUESSED_AT_ONCE = 4_096
"""Number of words whose sounds are guessed together, in at most 40 MB."""


class Pronouncer:
    """Pronounces canonical words.

    Args:
        words: phones by word, in lower case, at least one word.
    """

    def __init__(self, words: Mapping[str, Phones]) -> None:
        self._words = words
        self._lock = Lock()
        self._guessed: dict[str, Phones] = {}

    def pronounce(self, word: str) -> Phones:
        """Return the phones of a word; none if it is not in the dictionary and not written in letters a to z.

        The first word that is not in the dictionary takes longer, because the rules for letters are learned
        from the dictionary then.
        """
        return self.pronounce_all((word,))

    def learn_letters(self) -> None:
        """Learn the rules for letters now, unless they are known."""
        with self._lock:
            self._rules  # noqa: B018  # a cached property

    def pronounce_all(self, words: Words) -> Phones:
        """Return the phones of words in a row; none if one of them has none."""
        (phones,) = self.pronounce_each([words])
        return phones

    def pronounce_each(self, sequences: Iterable[Words]) -> list[Phones]:
        """Return the phones of each sequence of words, as ``pronounce_all`` does.

        Words that are not in the dictionary are guessed together, each once.
        """
        sequences = list(sequences)
        phones = {word: self._find(word.lower()) for words in sequences for word in words}
        unknown = list(dict.fromkeys(word.lower() for word, known in phones.items() if known is None))
        guessed = self._guess(unknown)
        parts = ([phones[word] or guessed.get(word.lower(), b"") for word in words] for words in sequences)
        return [b"".join(words) if all(words) else b"" for words in parts]

    def _find(self, word: str) -> Phones | None:
        """The phones of a word in lower case; None if they have to be guessed."""
        if (phones := self._words.get(word) or self._guessed.get(word)) is not None:
            return phones
        return b"" if len(word) > MAX_LETTERS or UNSPOKEN.search(word) else None

    def _guess(self, words: Sequence[str]) -> dict[str, Phones]:
        """Guess how words in lower case sound, and remember it."""
        guessed: dict[str, Phones] = {}
        if words:
            with self._lock:  # threads that arrive meanwhile wait for the rules
                rules = self._rules
            for begin in range(0, len(words), GUESSED_AT_ONCE):
                part = words[begin : begin + GUESSED_AT_ONCE]
                guessed |= zip(part, rules.pronounce_each(part), strict=True)
            if len(self._guessed) + len(guessed) > CACHED_WORDS:
                self._guessed.clear()
            self._guessed |= dict(islice(guessed.items(), CACHED_WORDS))
        return guessed

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

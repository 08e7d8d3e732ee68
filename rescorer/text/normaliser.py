"""Normalise text into canonical words, in the same way for n-best lists, references and training text.

Every token is normalised independently of its neighbours, so results can be cached per token.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import chain
from math import ceil

from rescorer.text.first_rules import FirstRules
from rescorer.text.second_rules import VARIANT, SecondRules
from rescorer.text.settings import NormaliserSettings


class Normaliser:
    """Converts text to canonical words.

    >>> Normaliser().normalise("<s> Here's  to(2) [NOISE] we_did, well-known!")
    ("here's", 'to', 'we', 'did', 'well', 'known')
    """

    def __init__(self, settings: NormaliserSettings | None = None) -> None:
        self.settings = settings or NormaliserSettings()
        rules = FirstRules if self.settings.rules == 1 else SecondRules
        self._words_of = rules(self.settings).words_of
        self._replacement_growth = max_replacement_growth(self.settings.replace)
        self._cache: dict[str, tuple[str, ...]] = {}
        self._single_words: dict[str, str] = {}
        """The words of tokens in the cache that have exactly one, as most have."""
        self._cache_bytes = 0

    def normalise(self, text: str) -> tuple[str, ...]:
        """Return the canonical words of a text; there may be none."""
        tokens = text.split()
        try:
            words = [*map(self._single_words.__getitem__, tokens)]
        except KeyError:  # a token that is not in the cache, or not one word
            words = self._normalise_tokens(tokens)
        return tuple(words)  # a tuple made from an iterator grows, and its memory is kept for reuse in vain

    def _normalise_tokens(self, tokens: list[str]) -> list[str]:
        try:
            return [*chain.from_iterable(map(self._cache.__getitem__, tokens))]
        except KeyError:  # a token that is not in the cache
            return [*chain.from_iterable(map(self.normalise_token, tokens))]

    def normalise_token(self, token: str) -> tuple[str, ...]:
        """Return the canonical words of one token, which contains no white space."""
        words = self._cache.get(token)
        if words is None:
            words = tuple(self._words_of(token))
            if len(token) <= MAX_CACHED_CHARACTERS:
                self._add_to_cache(token, words)
        return words

    def surfaces(self, text: str) -> tuple[str, ...]:
        """Return each canonical word of a text as it is written there.

        A word that is a whole token is written as the token, without the number of a pronunciation variant; a
        word that is a part of a token, such as those of ``we_did``, as the canonical word.
        """
        surfaces = list[str]()
        for token in text.split():
            words = self.normalise_token(token)
            if len(words) == 1:
                written = VARIANT.sub("", token) if self.settings.variants else token
                surfaces.append(written if self.normalise_token(written) == words else token)
            else:
                surfaces += words
        return tuple(surfaces)

    def max_growth(self, text: str) -> int:
        """Return a bound of how many bytes of words, in UTF-8, come from a byte of this text."""
        settings = self.settings
        if text.isascii():
            by_character = 2 if settings.has_dotless_i else 1  # I becomes ı, or i İ
        else:
            by_character = MAX_CHARACTER_GROWTH[settings.unicode_form]
        return by_character * self._replacement_growth

    def _add_to_cache(self, token: str, words: tuple[str, ...]) -> None:
        if self._cache_bytes >= MAX_CACHE_BYTES:
            self._cache.clear()
            self._single_words.clear()
            self._cache_bytes = 0
        self._cache[token] = words
        if len(words) == 1:
            (self._single_words[token],) = words
        self._cache_bytes += CACHE_ENTRY_BYTES + sum(map(sys.getsizeof, (token, words, *words)))


MAX_CACHE_BYTES = 60_000_000
"""Size at which the token cache is cleared: about 200,000 ordinary words, more than most texts have."""
CACHE_ENTRY_BYTES = 160
"""Size of the entries of a token in both caches, in addition to the strings."""
MAX_CACHED_CHARACTERS = 64
"""Length of the longest token that is cached; longer ones rarely occur twice."""
MAX_CHARACTER_GROWTH = {"NFC": 3, "NFKC": 11}
"""How many times as many bytes a character may have, in UTF-8, after its normalisation and change of case."""


def max_replacement_growth(replace: Mapping[str, str]) -> int:
    """Return how many times as many bytes a replacement may have, in UTF-8, as the word; at least 1."""
    sizes = ((utf8_bytes(word), utf8_bytes(replacement)) for word, replacement in replace.items())
    return max((ceil(after / before) for before, after in sizes if before and after), default=1)


def utf8_bytes(text: str) -> int:
    """Return the size of a text in UTF-8, in which a lone surrogate counts three bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))

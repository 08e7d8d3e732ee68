"""Normalise text into canonical words, in the same way for n-best lists, references and training text.

Every token is normalised independently of its neighbours, so results can be cached per token.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from math import ceil
from typing import Any, Literal

from rescorer.errors import ConfigError, quote
from rescorer.safe_input.patterns import check_patterns, compile_patterns, matches

DEFAULT_DROP_PATTERNS = (
    r"</?s>",  # sentence marks
    r"<(sil|eps|noise|spoken_noise|unintelligible)>",
    r"!(NULL|ENTER|EXIT|SENT_START|SENT_END)",  # HTK
    r"\[(NOISE|SPEECH|COUGH|SMACK|UH|UM|LAUGHTER|BREATH|SILENCE|VOCALIZED-NOISE|INAUDIBLE)\]",
    r"\+\+[A-Za-z_]+\+\+",  # Sphinx fillers
    r"-pau-|sil",
)
"""Tokens in recogniser output that are not words; matched regardless of case."""


MAX_REPLACEMENT_CHARACTERS = 100
"""Longest replacement of a word. A text of many such words must not grow beyond all bounds."""


def _are_strings(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "drop": ("a list of strings", lambda value: isinstance(value, tuple) and _are_strings(value)),
    "keep": ("a list of strings", lambda value: isinstance(value, tuple) and _are_strings(value)),
    "variants": ("true or false", lambda value: isinstance(value, bool)),
    "replace": (
        "an object of strings",
        lambda value: isinstance(value, dict) and _are_strings(value.values()),
    ),
}
"""Types of the settings that are not strings."""


@dataclass(frozen=True, slots=True)
class NormaliserSettings:
    """Settings of ``Normaliser``, stored in a bundle as ``text.json``.

    The steps are applied in the order of the fields.

    Raises:
        ConfigError: a regular expression is invalid, or a value is not one of those permitted.
    """

    unicode_form: Literal["NFC", "NFKC"] = "NFC"
    """Unicode normalisation form."""
    drop: tuple[str, ...] = DEFAULT_DROP_PATTERNS
    """Regular expressions of tokens that are removed; they must match the whole token. Module
    ``patterns`` says which expressions are accepted."""
    variants: bool = True
    """Whether to remove pronunciation variant numbers: ``to(2)`` becomes ``to``."""
    case: Literal["lower", "upper", "keep"] = "lower"
    """Case of canonical words."""
    keep: tuple[str, ...] = (r"%\w+", r"<\w+>", r"\[(oov|unk)\]")
    """Regular expressions of tokens that skip the steps for multiwords, hyphens and punctuation."""
    multiwords: str = "_"
    """Characters that join several words in one token, such as ``we_did``; empty: none."""
    hyphens: Literal["split", "keep"] = "split"
    """Whether to split hyphenated words."""
    punctuation: Literal["strip", "keep"] = "strip"
    """Whether to remove punctuation and symbols; apostrophes, decimal points and hyphens in words remain."""
    replace: Mapping[str, str] = field(default_factory=dict)
    """Replacements of words, applied before and after splitting, such as ``{"uh-huh": "uh_huh"}``.

    An empty value removes the word. Replacements are not processed further.
    """

    def __post_init__(self) -> None:
        for name in ("drop", "keep"):
            try:
                check_patterns(getattr(self, name))
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
        for name, allowed in (
            ("unicode_form", ("NFC", "NFKC")),
            ("case", ("lower", "upper", "keep")),
            ("hyphens", ("split", "keep")),
            ("punctuation", ("strip", "keep")),
        ):
            if getattr(self, name) not in allowed:
                expected = ", ".join(allowed)
                raise ConfigError(f"{name}: expected one of {expected}, got {getattr(self, name)!r}")
        for word, replacement in self.replace.items():
            if len(replacement) > MAX_REPLACEMENT_CHARACTERS:
                raise ConfigError(
                    f"replace: the replacement of {quote(word)} has {len(replacement):,} characters; "
                    f"expected at most {MAX_REPLACEMENT_CHARACTERS}"
                )

    @classmethod
    def raw(cls) -> NormaliserSettings:
        """Return settings that only split at white space, for normalised text such as the Penn Treebank."""
        return cls(
            drop=(), variants=False, case="keep", keep=(), multiwords="", hyphens="keep", punctuation="keep"
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NormaliserSettings:
        """Build settings from the content of ``text.json``.

        Raises:
            ConfigError: a setting is unknown or invalid.
        """
        known = {setting.name for setting in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"unknown normaliser settings {unknown}; known settings: {sorted(known)}")
        arguments: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        for name, value in arguments.items():
            expected, fits = _TYPES.get(name, ("a string", lambda value: isinstance(value, str)))
            if not fits(value):
                raise ConfigError(f"{name}: expected {expected}, got {ascii(value)[:100]}")
        return cls(**arguments)


class Normaliser:
    """Converts text to canonical words.

    >>> Normaliser(NormaliserSettings()).normalise("<s> Here's  to(2) [NOISE] we_did, well-known!")
    ('here's', 'to', 'we', 'did', 'well', 'known')
    """

    def __init__(self, settings: NormaliserSettings | None = None) -> None:
        self.settings = settings or NormaliserSettings()
        self._drop = compile_patterns(self.settings.drop)
        self._keep = compile_patterns(self.settings.keep)
        joiners = re.escape(self.settings.multiwords) + (
            r"\-‐‑–—" if self.settings.hyphens == "split" else ""
        )
        self._joiners = re.compile(f"[{joiners}]+") if joiners else None
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
            words = tuple(self._compute_words(token))
            if len(token) <= MAX_CACHED_CHARACTERS:
                self._add_to_cache(token, words)
        return words

    def max_growth(self, text: str) -> int:
        """Return a bound of how many bytes of words, in UTF-8, come from a byte of this text."""
        by_character = 1 if text.isascii() else MAX_CHARACTER_GROWTH[self.settings.unicode_form]
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

    def _compute_words(self, token: str) -> list[str]:
        settings = self.settings
        if len(token) <= MAX_COMPOSED_CHARACTERS:
            token = unicodedata.normalize(settings.unicode_form, token)
        token = INVISIBLE.sub("", token)
        if settings.variants:
            token = VARIANT.sub("", token)
        strip = settings.punctuation == "strip"
        # A token to drop, keep or replace may be followed by punctuation: "<sil>," and "Uh-huh."
        forms = [token, token.strip(EDGE_PUNCTUATION)] if strip else [token]
        if any(matches(self._drop, form) for form in forms):
            return []
        if settings.case != "keep":
            forms = [form.lower() if settings.case == "lower" else form.upper() for form in forms]
        unsplit = [form for form in forms if form in settings.replace or matches(self._keep, form)]
        if unsplit:
            parts = unsplit[:1]
        else:
            text = INNER_PUNCTUATION.sub(" ", THOUSANDS_SEPARATOR.sub("", forms[0])) if strip else forms[0]
            text = self._joiners.sub(" ", text) if self._joiners else text
            parts = [strip_punctuation(part) if strip else part for part in text.split()]
        replaced = (settings.replace.get(part, part) for part in parts if part)
        return [word for part in replaced for word in part.split()]


# Tokens are untrusted input, and matching blocks the whole process. The patterns below therefore take time
# that is linear in the length of the token.
VARIANT = re.compile(r"(?<=.)\(\d+\)(?=\W*$)")
INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
"""Control and format characters, which are invisible but would make words differ."""
EDGE_PUNCTUATION = '.,!?;:…"“”'
INNER_PUNCTUATION = re.compile(r"(?<=[^\W_])(?:[/,;:!?…()\[\]\"“”]|\.{2,}(?!\.))+(?=[^\W_])")
"""Punctuation between two words without a space: ``and/or``, ``wait...what``.

A run of dots is only matched as a whole, because trying all ways to divide it takes exponential time.
"""
THOUSANDS_SEPARATOR = re.compile(r"(?<=\d),(?=\d)")
MAX_CACHE_BYTES = 60_000_000
"""Size at which the token cache is cleared: about 200,000 ordinary words, more than most texts have."""
CACHE_ENTRY_BYTES = 160
"""Size of the entries of a token in both caches, in addition to the strings."""
MAX_CACHED_CHARACTERS = 64
"""Length of the longest token that is cached; longer ones rarely occur twice."""
MAX_COMPOSED_CHARACTERS = 1000
"""Length of the longest token to which Unicode normalisation is applied.

No word is longer, and the normalisation takes quadratic time in the number of combining marks.
"""
MAX_CHARACTER_GROWTH = {"NFC": 3, "NFKC": 11}
"""How many times as many bytes a character may have, in UTF-8, after its normalisation and change of case."""

DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
TYPOGRAPHIC_APOSTROPHES = str.maketrans({"’": "'", "ʼ": "'", "＇": "'"})


def max_replacement_growth(replace: Mapping[str, str]) -> int:
    """Return how many times as many bytes a replacement may have, in UTF-8, as the word; at least 1."""
    sizes = ((utf8_bytes(word), utf8_bytes(replacement)) for word, replacement in replace.items())
    return max((ceil(after / before) for before, after in sizes if before and after), default=1)


def utf8_bytes(text: str) -> int:
    """Return the size of a text in UTF-8, in which a lone surrogate counts three bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def strip_punctuation(word: str) -> str:
    """Remove punctuation and symbols except apostrophes, hyphens and decimal points inside the word.

    A leading apostrophe is kept (``'tis``, ``'em``) unless the word also ends with one.
    """
    quoted = word.startswith("‘")
    word = DECIMAL_POINT.sub("\0", word.translate(TYPOGRAPHIC_APOSTROPHES))
    kept = "".join(c for c in word if c in "'-" or unicodedata.category(c)[0] not in "PS")
    kept = kept.replace("\0", ".").strip("-")
    if kept.endswith("'") and (quoted or kept.startswith("'")):
        kept = kept.strip("'")
    return kept if kept.strip("'-") else ""

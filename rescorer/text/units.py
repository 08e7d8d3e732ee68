"""The units in which errors are counted: words, characters as people see them, or a mixture of both.

A character is an extended grapheme cluster of Unicode (UAX #29): a letter with its accents and vowel signs, a
syllable of Hangul however it is encoded, a conjunct such as क्ष, several emoji that joiners make one, or a
flag. Spaces are not counted as characters.

In mixed units, text in scripts that are written without spaces (``SCRIPTS_WITHOUT_SPACES``), such as Han,
Kana, Thai, Lao, Khmer, Myanmar and Tibetan, is counted in characters. Text in all others, including Hangul,
is counted in words: 手机 is two units, ``iPhone`` is one, and ``iPhone手机`` is three.

The classes of characters are in ``unicode_classes``, generated from one version of Unicode: an error rate
must not depend on the version in Python or in a library.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from rescorer.errors import pluralise, quote
from rescorer.text.unicode_classes import (
    CONJUNCT_EXTEND,
    CONSONANT,
    CONTROL,
    EXTEND,
    JAMO_L,
    JAMO_T,
    JAMO_V,
    LINKER,
    PICTOGRAPH,
    PREPEND,
    REGIONAL_INDICATOR,
    SCRIPTS_WITHOUT_SPACES,
    SPACING_MARK,
    UNICODE_VERSION,
    WITHOUT_SPACES,
)
from rescorer.types import ErrorUnit

__all__ = [
    "COUNTING_ADVICE",
    "SCRIPTS_WITHOUT_SPACES",
    "UNICODE_VERSION",
    "SpacingTally",
    "rate_name",
    "remark_on_spacing",
    "split_characters",
    "split_units",
    "unit_noun",
]

JOINER = "\u200d"
SYLLABLES = "\uac00-\ud7a3"
"""Syllables of Hangul in one character."""
OPEN_SYLLABLES = "".join(map(chr, range(0xAC00, 0xD7A4, 28)))
"""Syllables of Hangul without a trailing consonant."""
MAX_COMPOSED_CHARACTERS = 1000
"""Longest grapheme cluster to which Unicode normalisation is applied, because its time is quadratic."""


def rate_name(unit: str) -> str:
    """The name of the error rate in a unit: ``WER``, ``CER`` or ``MER``."""
    return f"{unit[0].upper()}ER"


def unit_noun(unit: str) -> str:
    """The noun for one unit of error: ``word``, ``character`` or, if both are counted, ``unit``."""
    return "unit" if unit == "mixed" else unit


def split_units(words: Sequence[str], unit: ErrorUnit) -> tuple[str, ...]:
    """Split canonical words into the units that are counted.

    >>> split_units(("मेरी", "फ़ोन"), "character")
    ('मे', 'री', 'फ़ो', 'न')
    >>> split_units(("我的", "iphone手机"), "mixed")
    ('我', '的', 'iphone', '手', '机')
    """
    if unit == "word":
        return tuple(words)
    if unit == "character":
        return split_characters("".join(words))
    return _split_mixed(" ".join(words))


def split_characters(text: str) -> tuple[str, ...]:
    """Split a text into grapheme clusters, each in Unicode's composed form (NFC).

    >>> split_characters("กำ") , split_characters("각") == split_characters("\u1100\u1161\u11a8")
    (('กำ',), True)
    """
    if _is_plain(text):
        return tuple(text)
    return tuple(map(_compose, find_clusters(text)))


def find_clusters(text: str) -> list[str]:
    """Return the grapheme clusters of a text with their code points unchanged."""
    return _patterns().cluster.findall(text)


def _split_mixed(text: str) -> tuple[str, ...]:
    """Split a text of words with single spaces between them. Spaces in scripts without spaces are ignored."""
    patterns = _patterns()
    if text.isascii() or not patterns.without_spaces.search(text):
        return tuple(text.split(" ")) if text else ()
    if _is_plain(text):
        return tuple(patterns.plain_mixed.findall(text))
    words = patterns.needless_space.sub("", text).split(" ")
    return tuple(_compose(unit) for word in words for unit in patterns.mixed.findall(word))


def has_long_clusters(text: str) -> bool:
    """Whether a code point of a text may be part of a longer cluster; if none is, each is a cluster."""
    return _patterns().joining.search(text) is not None


def _is_plain(text: str) -> bool:
    """Whether a text is in NFC and each of its code points is a grapheme cluster."""
    if text.isascii():
        return "\n" not in text
    return not has_long_clusters(text) and unicodedata.is_normalized("NFC", text)


def _compose(unit: str) -> str:
    """Convert a unit to NFC. When a space is dropped, a mark after it may join the letter before it."""
    return unit if len(unit) > MAX_COMPOSED_CHARACTERS else unicodedata.normalize("NFC", unit)


class _Patterns(NamedTuple):
    cluster: re.Pattern[str]
    """A grapheme cluster."""
    joining: re.Pattern[str]
    """A code point that may be part of a longer cluster. In a text without any, each one is a cluster."""
    mixed: re.Pattern[str]
    """A cluster of a script without spaces, or a run of clusters of other scripts."""
    plain_mixed: re.Pattern[str]
    """Like ``mixed``, for text in which each code point is a cluster, so that a simpler pattern will do."""
    needless_space: re.Pattern[str]
    without_spaces: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    """Compile patterns for grapheme clusters, by rules GB3 to GB13 of UAX #29.

    As texts are untrusted input, all repetitions are possessive, so that matching takes linear time.
    """
    conjunct = f"[{LINKER}][{CONJUNCT_EXTEND}]*+[{CONSONANT}]"
    tail = f"(?:(?=[{EXTEND}]){conjunct}|[{EXTEND}{SPACING_MARK}{JOINER}])*+"
    hangul = (
        f"[{JAMO_L}]*+(?:[{OPEN_SYLLABLES}][{JAMO_V}]*+|[{JAMO_V}]++|[{SYLLABLES}])[{JAMO_T}]*+"
        f"|[{JAMO_L}]++|[{JAMO_T}]++"
    )
    pictograph = f"[{PICTOGRAPH}](?:[{EXTEND}]*+{JOINER}[{PICTOGRAPH}])*+"
    flag = f"[{REGIONAL_INDICATOR}]{{2}}"
    core = f"{hangul}|{pictograph}|{conjunct}|{flag}|[^{CONTROL}]"
    cluster = rf"(?:\r\n|[{PREPEND}]*+(?:{core}){tail}|[{PREPEND}]++|[{CONTROL}])"
    own = f"(?=[{WITHOUT_SPACES}]){cluster}"
    joining = "".join(
        (EXTEND, SPACING_MARK, PREPEND, LINKER, REGIONAL_INDICATOR, JAMO_L, JAMO_V, JAMO_T, JOINER, r"\n")
    )
    return _Patterns(
        cluster=re.compile(cluster),
        joining=re.compile(f"[{joining}]"),
        mixed=re.compile(f"{own}|(?:(?![{WITHOUT_SPACES}]){cluster})++"),
        plain_mixed=re.compile(f"[{WITHOUT_SPACES}]|[^{WITHOUT_SPACES} ]+"),
        needless_space=re.compile(
            f"(?<=[{WITHOUT_SPACES}]) (?=[{WITHOUT_SPACES}{EXTEND}{SPACING_MARK}{JOINER}])"
        ),
        without_spaces=re.compile(f"[{WITHOUT_SPACES}]"),
    )


MIN_SHARE_OF_TEXTS = 0.1
"""Smallest share of texts in scripts without spaces that is worth a remark."""
COUNTING_ADVICE = "count characters with --characters, or also words of other scripts with --unit mixed"


@dataclass(slots=True)
class SpacingTally:
    """Notices texts without spaces between words, whose errors should not be counted in words.

    In many corpora, such texts were divided into words; these texts are not remarked on.
    """

    texts: int = 0
    """Texts with words."""
    in_scripts: int = 0
    """Texts with at least two characters of scripts without spaces, between which a space could stand."""
    undivided: int = 0
    """Those of ``in_scripts`` that have no space between two such characters."""
    example: str = ""
    """The first undivided text."""

    def add(self, words: Sequence[str]) -> None:
        """Add the canonical words of a text."""
        text = " ".join(words)
        self.texts += bool(text)
        patterns = _patterns()
        if text.isascii() or not patterns.without_spaces.search(text):
            return
        own = sum(patterns.without_spaces.match(unit) is not None for unit in split_units(words, "mixed"))
        if own < 2:
            return
        self.in_scripts += 1
        if not patterns.needless_space.search(text):
            self.undivided += 1
            self.example = self.example or text

    @property
    def is_undivided(self) -> bool:
        """Whether many of the texts have no spaces, so that their words are whole sentences.

        It is enough that half of the texts in such scripts are undivided. These may be the hypotheses, while
        the references are divided.
        """
        return (
            self.in_scripts > 0
            and self.in_scripts >= MIN_SHARE_OF_TEXTS * self.texts
            and 2 * self.undivided >= self.in_scripts
        )

    def describe(self) -> str:
        """Describe what was noticed, without a full stop; empty if there is nothing to say."""
        if not self.is_undivided:
            return ""
        texts = pluralise(self.texts, "text has", "texts have")
        return (
            f"{self.undivided:,} of {texts} no spaces between words, and whole phrases count as one word: "
            f"{quote(self.example)}"
        )


def remark_on_spacing(texts: Iterable[Sequence[str]]) -> str:
    """Return a remark if texts have no spaces, so that their word error rate misleads; empty otherwise."""
    tally = SpacingTally()
    for words in texts:
        tally.add(words)
    found = tally.describe()
    return f"{found}; {COUNTING_ADVICE}" if found else ""

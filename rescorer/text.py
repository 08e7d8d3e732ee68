"""Owns the step from text to canonical words: pure, one token at a time, the same for lists, references
and training text; knows nothing of word ids.

A token's canonical words depend on that token alone, never on its neighbours, so that every distinct
token is normalised once and remembered.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from rescorer.errors import ConfigError

DROPPED = (
    r"</?s>",  # sentence marks
    r"<(sil|eps|noise|spoken_noise|unintelligible)>",
    r"!(NULL|ENTER|EXIT|SENT_START|SENT_END)",  # HTK
    r"\[(NOISE|SPEECH|COUGH|SMACK|UH|UM|LAUGHTER|BREATH|SILENCE|VOCALIZED-NOISE|INAUDIBLE)\]",
    r"\+\+[A-Za-z_]+\+\+",  # Sphinx fillers
    r"-pau-|sil",
)
"""What recognisers write that nobody said, in either case."""


@dataclass(frozen=True, slots=True)
class NormaliserSettings:
    """What ``Normaliser`` does; stored in a bundle as ``text.json``.

    The steps run in the order of the fields.
    """

    unicode_form: Literal["NFC", "NFKC"] = "NFC"
    drop: tuple[str, ...] = DROPPED
    """Regular expressions; a token that one of them matches whole is no word."""
    variants: bool = True
    """``to(2)`` is a pronunciation of ``to``."""
    case: Literal["lower", "upper", "keep"] = "lower"
    keep: tuple[str, ...] = (r"%\w+", r"<\w+>", r"\[(oov|unk)\]")
    """Regular expressions of tokens that punctuation, hyphens and multiwords leave alone."""
    multiwords: str = "_"
    """Characters that join several words into one token: ``we_did``; empty: none."""
    hyphens: Literal["split", "keep"] = "split"
    punctuation: Literal["strip", "keep"] = "strip"
    """``strip`` removes every punctuation mark and symbol but apostrophes, decimal points and hyphens
    (where those are kept) inside words."""
    replace: Mapping[str, str] = field(default_factory=dict)
    """Words, before and after the splitting: ``{"uh": "%hesitation", "uh-huh": "uh_huh"}``; an empty value
    drops the word. A replacement is final."""

    def __post_init__(self) -> None:
        for name in ("drop", "keep"):
            for pattern in getattr(self, name):
                try:
                    re.compile(pattern)
                except re.error as fault:
                    raise ConfigError(f"{name}: {pattern!r} is no regular expression: {fault}") from None
        for name, allowed in (
            ("unicode_form", ("NFC", "NFKC")),
            ("case", ("lower", "upper", "keep")),
            ("hyphens", ("split", "keep")),
            ("punctuation", ("strip", "keep")),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}")

    @classmethod
    def raw(cls) -> NormaliserSettings:
        """Whitespace splits, nothing else: for text whose tokens are settled, such as Penn Treebank."""
        return cls(
            drop=(), variants=False, case="keep", keep=(), multiwords="", hyphens="keep", punctuation="keep"
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NormaliserSettings:
        """Raises ConfigError on unknown settings, so that a misspelt one is not silently ignored."""
        known = {each.name for each in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"unknown normaliser settings {unknown}; known are {sorted(known)}")
        arguments: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**arguments)


class Normaliser:
    """Turns text into canonical words.

    >>> Normaliser(NormaliserSettings()).words("<s> Here's  to(2) [NOISE] we_did, well-known!")
    ('here's', 'to', 'we', 'did', 'well', 'known')
    """

    def __init__(self, settings: NormaliserSettings | None = None) -> None:
        self.settings = settings or NormaliserSettings()
        self._drop = re.compile("|".join(f"(?:{p})" for p in self.settings.drop) or r"(?!)", re.IGNORECASE)
        self._keep = re.compile("|".join(f"(?:{p})" for p in self.settings.keep) or r"(?!)", re.IGNORECASE)
        joiners = re.escape(self.settings.multiwords) + (
            r"\-‐‑–—" if self.settings.hyphens == "split" else ""
        )
        self._joiners = re.compile(f"[{joiners}]+") if joiners else None
        self._memory: dict[str, tuple[str, ...]] = {}
        self._memory_bytes = 0

    def words(self, text: str) -> tuple[str, ...]:
        """Canonical words of ``text``; none for an empty or all-filler text."""
        memory = self._memory
        out: list[str] = []
        for token in text.split():
            words = memory.get(token)
            out.extend(self.token(token) if words is None else words)
        return tuple(out)

    def token(self, token: str) -> tuple[str, ...]:
        """Canonical words of one whitespace-delimited token."""
        words = self._memory.get(token)
        if words is None:
            words = tuple(self._token(token))
            if len(token) <= LONGEST_REMEMBERED:
                self._remember(token, words)
        return words

    def _remember(self, token: str, words: tuple[str, ...]) -> None:
        if self._memory_bytes >= MEMORY_BYTES:
            self._memory.clear()
            self._memory_bytes = 0
        self._memory[token] = words
        self._memory_bytes += ENTRY_BYTES + sum(map(sys.getsizeof, (token, words, *words)))

    def _token(self, token: str) -> list[str]:
        settings = self.settings
        if len(token) <= LONGEST_COMPOSED:
            token = unicodedata.normalize(settings.unicode_form, token)
        token = INVISIBLE.sub("", token)
        if settings.variants:
            token = VARIANT.sub("", token)
        strip = settings.punctuation == "strip"
        # A mark or a word to replace may have a comma behind it: "<sil>," and "Uh-huh."
        forms = [token, token.strip(EDGES)] if strip else [token]
        if any(self._drop.fullmatch(form) for form in forms):
            return []
        if settings.case != "keep":
            forms = [form.lower() if settings.case == "lower" else form.upper() for form in forms]
        settled = [form for form in forms if form in settings.replace or self._keep.fullmatch(form)]
        if settled:
            parts = settled[:1]
        else:
            text = INNER.sub(" ", THOUSANDS.sub("", forms[0])) if strip else forms[0]
            text = self._joiners.sub(" ", text) if self._joiners else text
            parts = [strip_punctuation(part) if strip else part for part in text.split()]
        replaced = (settings.replace.get(part, part) for part in parts if part)
        return [word for part in replaced for word in part.split()]


# Callers choose the tokens, and while a pattern is tried nothing else runs there: it must take a time
# that goes with a token's length, not with its square.
VARIANT = re.compile(r"(?<=.)\(\d+\)(?=\W*$)")
INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
"""Control and format characters that nobody sees and every look-up does."""
EDGES = '.,!?;:…"“”'
INNER = re.compile(r"(?<=[^\W_])(?:[/,;:!?…()\[\]\"“”]|\.{2,}(?!\.))+(?=[^\W_])")
"""Punctuation that stands between two words without a blank: ``and/or``, ``wait...what``. A row of dots is
taken whole: there are more ways to cut it into shorter ones than there is time to try."""
THOUSANDS = re.compile(r"(?<=\d),(?=\d)")
MEMORY_BYTES, ENTRY_BYTES = 50_000_000, 80
"""The memory of tokens is emptied at this size, so that endless odd input cannot fill the machine: 200,000
ordinary words, more than most texts have. An entry takes so much besides its texts."""
LONGEST_REMEMBERED = 64
"""Characters; what is longer seldom comes again."""
LONGEST_COMPOSED = 1000
"""Characters of a token whose Unicode form is made; no word is longer. Marks are put in order in a time that
goes with the square of their number."""

DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
TYPOGRAPHIC_APOSTROPHES = str.maketrans({"’": "'", "ʼ": "'", "＇": "'"})


def strip_punctuation(word: str) -> str:
    """Removes punctuation marks and symbols; apostrophes, hyphens and decimal points stay inside a word.

    A leading apostrophe stays where letters follow (``'tis``, ``'em``) unless the word also ends in one.
    """
    quoted = word.startswith("‘")
    word = DECIMAL_POINT.sub("\0", word.translate(TYPOGRAPHIC_APOSTROPHES))
    kept = "".join(c for c in word if c in "'-" or unicodedata.category(c)[0] not in "PS")
    kept = kept.replace("\0", ".").strip("-")
    if kept.endswith("'") and (quoted or kept.startswith("'")):
        kept = kept.strip("'")
    return kept if kept.strip("'-") else ""

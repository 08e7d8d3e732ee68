"""Owns what an audit knows of the words: marks that the normaliser does not take away, and unknown words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rescorer.text import DROPPED, Normaliser

SHOWN = 20
"""Unknown words, and examples of each kind of token, that are kept."""

FILLER = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|\{[^{}\s]+\}|\([^()\s]*[^()\d\s][^()\s]*\)|\+\+?[^+\s]+\+\+?|"
                    r"[!%#]\w+|\*\w+\*|-\w+-", re.IGNORECASE)  # fmt: skip
VARIANT = re.compile(r"(.*\w)(?:\(\d+\)|[#~]\d+)")
MULTIWORD = re.compile(r"[^\W\d_]+(?:'\w+)?(?:[_+=~^|][^\W\d_]+(?:'\w+)?)+")
JOINER = re.compile(r"[_+=~^|]")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Some tokens of one kind."""

    count: int
    """How often they occur."""
    distinct: int
    examples: tuple[tuple[str, int], ...]
    """The most frequent ones, with their counts."""

    @classmethod
    def of(cls, counts: Counter[str]) -> Tokens:
        return cls(counts.total(), len(counts), tuple(counts.most_common(SHOWN)))

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count, "distinct": self.distinct, "examples": dict(self.examples)}


@dataclass(frozen=True, slots=True)
class UnknownWords:
    """Canonical words that a bundle's n-gram lacks."""

    words: int
    """Words of all hypotheses, known or not."""
    unknown: Tokens
    other_case: int
    """Of the unknown ones, how many the bundle knows in lower or upper case."""
    reference_words: int
    reference_unknown: int

    @property
    def rate(self) -> float:
        return self.unknown.count / self.words if self.words else 0.0

    @property
    def reference_rate(self) -> float | None:
        return self.reference_unknown / self.reference_words if self.reference_words else None

    def to_dict(self) -> dict[str, Any]:
        reference = self.reference_rate
        return {
            "oov_percent": round(100 * self.rate, 2),
            "reference_oov_percent": None if reference is None else round(100 * reference, 2),
            "known_in_other_case": self.other_case,
            "unknown_words": self.unknown.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class WordFacts:
    """All tokens of the hypotheses and references."""

    tokens: int
    uncovered: Mapping[str, Tokens]
    """What the normaliser's settings do not take care of, by kind: filler, variant, multiword, case."""
    unknown: UnknownWords | None
    """None without a bundle."""

    def to_dict(self) -> dict[str, Any]:
        uncovered = {kind: tokens.to_dict() for kind, tokens in self.uncovered.items()}
        return {"uncovered": uncovered} | (self.unknown.to_dict() if self.unknown else {})


class WordTally:
    """Counts tokens; holds each distinct one once."""

    def __init__(self) -> None:
        self._heard: Counter[str] = Counter()
        self._spoken: Counter[str] = Counter()

    def add(self, texts: Iterable[str], reference: Iterable[str] = ()) -> None:
        """One list: the texts of its hypotheses, and the tokens of its reference."""
        for text in texts:
            self._heard.update(text.split())
        self._spoken.update(reference)

    def facts(self, normaliser: Normaliser, known: frozenset[str] | None = None) -> WordFacts:
        tokens = self._heard + self._spoken
        kinds: dict[str, Counter[str]] = {}
        for token, count in tokens.items():
            if kind := uncovered_kind(token, normaliser, known, tokens):
                kinds.setdefault(kind, Counter())[token] += count
        return WordFacts(
            tokens=tokens.total(),
            uncovered={kind: Tokens.of(kinds[kind]) for kind in sorted(kinds)},
            unknown=None if known is None else self._unknown(normaliser, known),
        )

    def _unknown(self, normaliser: Normaliser, known: frozenset[str]) -> UnknownWords:
        heard, spoken = (_canonical(counts, normaliser) for counts in (self._heard, self._spoken))
        unknown = Counter({word: count for word, count in heard.items() if word not in known})
        other_case = sum(n for word, n in unknown.items() if {word.lower(), word.upper()} & known)
        missing = sum(count for word, count in spoken.items() if word not in known)
        return UnknownWords(heard.total(), Tokens.of(unknown), other_case, spoken.total(), missing)


def uncovered_kind(
    token: str, normaliser: Normaliser, known: frozenset[str] | None, seen: Mapping[str, int]
) -> str:
    """What kind of mark a token is that the settings leave in the words; empty: none.

    Args:
        known: a token whose words are all known to the bundle is meant to be one.
        seen: all tokens, to tell a name in capitals from text of both cases.
    """
    words = normaliser.token(token)
    if not words or (known is not None and all(word in known for word in words)):
        return ""
    if _matches(DROPPED, token):
        return "filler"
    if known is None and _matches(normaliser.settings.keep, token):
        return ""
    if (variant := VARIANT.fullmatch(token)) and words != normaliser.token(variant[1]):
        return "variant"
    if FILLER.fullmatch(token):
        return "filler"
    if MULTIWORD.fullmatch(token) and words != normaliser.words(JOINER.sub(" ", token)):
        return "multiword"
    mixed = normaliser.settings.case == "keep" and token != token.lower()
    return "case" if mixed and (token.lower() in seen or (known and token.lower() in known)) else ""


def _matches(patterns: Iterable[str], token: str) -> bool:
    return any(re.fullmatch(each, token, re.IGNORECASE) for each in patterns)


def _canonical(counts: Counter[str], normaliser: Normaliser) -> Counter[str]:
    words: Counter[str] = Counter()
    for token, count in counts.items():
        for word in normaliser.token(token):
            words[word] += count
    return words

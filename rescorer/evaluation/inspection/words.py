"""Statistics of tokens: marks that the normaliser leaves in the words, toolkits' markup, and OOV words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rescorer.formats.pieces import FoundMarkup, MarkupTally
from rescorer.text import EVENT_PATTERNS, FILLERS, Normaliser

MAX_EXAMPLES = 20
"""Maximum number of OOV words to keep, and of examples to keep per kind of token."""

FILLER = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|\{[^{}\s]+\}|\([^()\s]*[^()\d\s][^()\s]*\)|\+\+?[^+\s]+\+\+?|"
                    r"[!%#]\w+|\*\w+\*|-\w+-", re.IGNORECASE)  # fmt: skip
MARK_PATTERNS = (*EVENT_PATTERNS, *(pattern for pattern in FILLERS["english"] if "[" in pattern[:2]), "sil")
"""Tokens that are marks rather than words wherever they are left: events, and fillers in brackets."""
BUCKWALTER = re.compile(r"(?=.*[|>&<}{~*$])['|>&<}{`~*$_A-Za-z]*[A-Za-z]['|>&<}{`~*$_A-Za-z]*")
X_SAMPA = re.compile(
    r"(?!.*(?:@@|##|<\|))(?=.*(?:[@{}\\]|[A-Za-z]:.|[A-Za-z]_[a-z]|\"[A-Za-z].*(?<!\")$))[!-~]+"
)
ALTERNATION_MARKS = frozenset("{/}")
"""Marks of alternatives in files of NIST, whose braces stand alone: ``{ c / @ }``."""
MIN_LETTERS_SHARE = 0.2
"""Smallest share of tokens with a sign among their letters for which signs seem to be letters."""
VARIANT = re.compile(r"(.*\w)(?:\(\d+\)|[#~]\d+)")
MULTIWORD = re.compile(r"[^\W\d_]+(?:'\w+)?(?:[_+=~^|][^\W\d_]+(?:'\w+)?)+")
JOINER = re.compile(r"[_+=~^|]")


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Tokens of one kind."""

    count: int
    """Number of occurrences."""
    distinct: int
    examples: tuple[tuple[str, int], ...]
    """The most frequent ones, with their counts."""

    @classmethod
    def from_counts(cls, counts: Counter[str]) -> TokenStats:
        return cls(counts.total(), len(counts), tuple(counts.most_common(MAX_EXAMPLES)))

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count, "distinct": self.distinct, "examples": dict(self.examples)}


@dataclass(frozen=True, slots=True)
class UnknownWords:
    """Canonical words that the n-gram of a bundle does not know."""

    words: int
    """Number of words in all hypotheses, known or not."""
    unknown: TokenStats
    other_case: int
    """Unknown words that the bundle knows in lower or upper case."""
    reference_words: int
    reference_unknown: int

    @property
    def rate(self) -> float:
        return self.unknown.count / self.words if self.words else 0.0

    @property
    def reference_rate(self) -> float | None:
        return self.reference_unknown / self.reference_words if self.reference_words else None

    def to_dict(self) -> dict[str, Any]:
        reference_rate = self.reference_rate
        return {
            "oov_percent": round(100 * self.rate, 2),
            "reference_oov_percent": None if reference_rate is None else round(100 * reference_rate, 2),
            "known_in_other_case": self.other_case,
            "unknown_words": self.unknown.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class MarkupStats:
    """A kind of toolkits' markup in the hypotheses or the references."""

    found: FoundMarkup
    in_references: bool = False
    is_known: bool = False
    """Whether the bundle knows most of the marked tokens as words."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.found.kind.name,
            "in": "references" if self.in_references else "hypotheses",
            "texts": self.found.texts,
            "of": self.found.of_texts,
            "examples": list(self.found.examples),
            "known": self.is_known,
        }


@dataclass(frozen=True, slots=True)
class WordStats:
    """All tokens of the hypotheses and references."""

    tokens: int
    uncovered: Mapping[str, TokenStats]
    """Tokens that the normaliser's settings do not handle, by kind: filler, variant, multiword, case."""
    unknown: UnknownWords | None
    """None without a vocabulary."""
    integers: TokenStats = TokenStats(0, 0, ())
    """Tokens of the hypotheses, if all are whole numbers, like word ids, and the references are not."""
    letters: str = ""
    """Name of the alphabet that the tokens seem to be written in, in which signs are letters."""
    spacing: str = ""
    """What is to be said about words without spaces between them; see ``rescorer.text.units``."""
    markup: tuple[MarkupStats, ...] = ()
    unknown_pieces: Mapping[str, int] = field(default_factory=dict)
    """Tokens of the hypotheses that stand for something unknown, such as ``⁇``, with their counts."""

    def to_dict(self) -> dict[str, Any]:
        uncovered = {kind: tokens.to_dict() for kind, tokens in self.uncovered.items()}
        return {
            "uncovered": uncovered,
            "integers": self.integers.to_dict(),
            "letters": self.letters,
            "markup": [markup.to_dict() for markup in self.markup],
            "unknown_pieces": dict(self.unknown_pieces),
        } | (self.unknown.to_dict() if self.unknown else {})


def _is_integer(token: str) -> bool:
    return token.isascii() and token.isdigit()


class WordTally:
    """Counts tokens; keeps each distinct one once."""

    def __init__(self, drops: Callable[[str], bool] | None = None) -> None:
        """``drops`` says whether a token has no words; see ``MarkupTally``."""
        self._hypothesis_tokens: Counter[str] = Counter()
        self._reference_tokens: Counter[str] = Counter()
        given = () if drops is None else (drops,)
        self._hypothesis_markup, self._reference_markup = MarkupTally(*given), MarkupTally(*given)

    def add(self, texts: Iterable[str], reference: Iterable[str] = ()) -> None:
        """Add a list: the texts of its hypotheses, and the tokens of its reference."""
        for text in texts:
            self._hypothesis_tokens.update(text.split())
            self._hypothesis_markup.add(text)
        tokens = tuple(reference)
        self._reference_tokens.update(tokens)
        if tokens:
            self._reference_markup.add(" ".join(tokens))

    def stats(
        self,
        normaliser: Normaliser,
        vocabulary: frozenset[str] | None = None,
        read: Normaliser | None = None,
    ) -> WordStats:
        """Judge the tokens.

        Args:
            normaliser: gives the words in which errors are counted.
            read: gives the words that models read, which can be unknown; None: the same.
        """
        tokens = self._hypothesis_tokens + self._reference_tokens
        kinds: dict[str, Counter[str]] = {}
        for token, count in tokens.items():
            if kind := classify_uncovered(token, normaliser, vocabulary, tokens):
                kinds.setdefault(kind, Counter())[token] += count
        return WordStats(
            tokens=tokens.total(),
            uncovered={kind: TokenStats.from_counts(kinds[kind]) for kind in sorted(kinds)},
            unknown=None if vocabulary is None else self._count_unknown(read or normaliser, vocabulary),
            integers=TokenStats.from_counts(self._find_integer_ids()),
            letters=find_letters(tokens) if loses_signs(normaliser) else "",
            markup=tuple(self._find_markup(read or normaliser, vocabulary or frozenset())),
            unknown_pieces=self._hypothesis_markup.unknown,
        )

    def _find_markup(self, normaliser: Normaliser, vocabulary: frozenset[str]) -> Iterator[MarkupStats]:
        for found in self._hypothesis_markup.found():
            is_word = found.kind.count is not None
            marked = [token for token in self._hypothesis_tokens if is_word and found.kind.sign in token]
            known = sum(set(normaliser.normalise_token(token)) == {token} <= vocabulary for token in marked)
            yield MarkupStats(found, is_known=known > len(marked) / 2)
        for found in self._reference_markup.found():
            yield MarkupStats(found, in_references=True)

    def _find_integer_ids(self) -> Counter[str]:
        """Return the hypotheses' tokens if they look like ids of a symbol table, otherwise nothing."""
        spoken = self._reference_tokens and all(map(_is_integer, self._reference_tokens))
        found = not spoken and all(map(_is_integer, self._hypothesis_tokens))
        return self._hypothesis_tokens if found else Counter()

    def _count_unknown(self, normaliser: Normaliser, vocabulary: frozenset[str]) -> UnknownWords:
        words = _normalise_counts(self._hypothesis_tokens, normaliser)
        reference_words = _normalise_counts(self._reference_tokens, normaliser)
        unknown = Counter({word: count for word, count in words.items() if word not in vocabulary})
        other_case = sum(
            count for word, count in unknown.items() if {word.lower(), word.upper()} & vocabulary
        )
        return UnknownWords(
            words=words.total(),
            unknown=TokenStats.from_counts(unknown),
            other_case=other_case,
            reference_words=reference_words.total(),
            reference_unknown=sum(count for word, count in reference_words.items() if word not in vocabulary),
        )


def classify_uncovered(
    token: str, normaliser: Normaliser, vocabulary: frozenset[str] | None, seen: Mapping[str, int]
) -> str:
    """Name the kind of mark that the normaliser's settings leave in a token; empty if there is none.

    Args:
        vocabulary: words that the bundle knows, if any; a token made only of such words has no mark.
        seen: all tokens, to distinguish a capitalised name from text in mixed case.
    """
    words = normaliser.normalise_token(token)
    if not words or (vocabulary is not None and all(word in vocabulary for word in words)):
        return ""
    if _matches(MARK_PATTERNS, token):
        return "filler"
    if vocabulary is None and _matches(normaliser.settings.keep, token):
        return ""
    if (variant := VARIANT.fullmatch(token)) and words != normaliser.normalise_token(variant[1]):
        return "variant"
    if FILLER.fullmatch(token):
        return "filler"
    if MULTIWORD.fullmatch(token) and words != normaliser.normalise(JOINER.sub(" ", token)):
        return "multiword"
    mixed = normaliser.settings.case == "keep" and token != token.lower()
    return "case" if mixed and (token.lower() in seen or (vocabulary and token.lower() in vocabulary)) else ""


def loses_signs(normaliser: Normaliser) -> bool:
    """Whether a normaliser takes signs of an alphabet for punctuation, or its capitals for small letters."""
    settings = normaliser.settings
    return not settings.letters and (settings.punctuation, settings.case) != ("keep", "keep")


def find_letters(tokens: Mapping[str, int]) -> str:
    """Name the alphabet in which signs are letters that tokens seem to be written in; empty if it is none.

    Buckwalter has no other signs than its own; X-SAMPA is recognised by signs at places of letters in many
    tokens that are not in Buckwalter.
    """
    if tokens.keys() >= ALTERNATION_MARKS:
        tokens = {token: count for token, count in tokens.items() if token not in ALTERNATION_MARKS | {"@"}}
    total = sum(tokens.values())
    for name, pattern in (("buckwalter", BUCKWALTER), ("x-sampa", X_SAMPA)):
        found = (token for token in tokens if pattern.fullmatch(token) and not FILLER.fullmatch(token))
        count = sum(map(tokens.__getitem__, found))
        if count > MIN_LETTERS_SHARE * total:
            return name
    return ""


def _matches(patterns: Iterable[str], token: str) -> bool:
    return any(re.fullmatch(pattern, token, re.IGNORECASE) for pattern in patterns)


def _normalise_counts(counts: Counter[str], normaliser: Normaliser) -> Counter[str]:
    words: Counter[str] = Counter()
    for token, count in counts.items():
        for word in normaliser.normalise_token(token):
            words[word] += count
    return words

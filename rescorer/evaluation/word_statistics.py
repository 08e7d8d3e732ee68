"""Statistics of the words in lists: tokens that need other settings, unknown words, and equal texts.

Different texts may have the same words after normalisation. This is intended if they differ only in case,
punctuation, events such as ``[NOISE]`` and variants such as ``to(2)``. If they differ in more, the normaliser
has made different words equal, and errors between these are not counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rescorer.errors import pluralise
from rescorer.formats.pieces import FoundMarkup, MarkupTally
from rescorer.text import EVENT_PATTERNS, FILLERS, Normaliser, NormaliserSettings
from rescorer.trie import Words

MAX_EXAMPLES = 20
"""Largest number of unknown words that are kept, and of examples of each kind of token."""

FILLER = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|\{[^{}\s]+\}|\([^()\s]*[^()\d\s][^()\s]*\)|\+\+?[^+\s]+\+\+?|"
                    r"[!%#]\w+|\*\w+\*|-\w+-", re.IGNORECASE)  # fmt: skip
MARK_PATTERNS = (*EVENT_PATTERNS, *(pattern for pattern in FILLERS["english"] if "[" in pattern[:2]), "sil")
"""Patterns of tokens that are marks, not words: events such as ``[NOISE]``, and fillers in brackets."""
BUCKWALTER = re.compile(r"(?=.*[|>&<}{~*$])['|>&<}{`~*$_A-Za-z]*[A-Za-z]['|>&<}{`~*$_A-Za-z]*")
X_SAMPA = re.compile(
    r"(?!.*(?:@@|##|<\|))(?=.*(?:[@{}\\]|[A-Za-z]:.|[A-Za-z]_[a-z]|\"[A-Za-z].*(?<!\")$))[!-~]+"
)
ALTERNATION_MARKS = frozenset("{/}")
"""Tokens that mark alternatives in NIST's files, as in ``{ c / @ }``."""
MIN_LETTERS_SHARE = 0.2
"""If more than this share of the tokens have signs among their letters, signs are taken for letters."""
VARIANT = re.compile(r"(.*\w)(?:\(\d+\)|[#~]\d+)")
MULTIWORD = re.compile(r"[^\W\d_]+(?:'\w+)?(?:[_+=~^|][^\W\d_]+(?:'\w+)?)+")
JOINER = re.compile(r"[_+=~^|]")


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Counts of tokens of one kind."""

    count: int
    """Number of occurrences."""
    distinct: int
    examples: tuple[tuple[str, int], ...]
    """The most frequent tokens, with their counts."""

    @classmethod
    def from_counts(cls, counts: Counter[str]) -> TokenStats:
        return cls(counts.total(), len(counts), tuple(counts.most_common(MAX_EXAMPLES)))

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count, "distinct": self.distinct, "examples": dict(self.examples)}


@dataclass(frozen=True, slots=True)
class UnknownWords:
    """Counts of canonical words that the n-gram model of a bundle does not know."""

    words: int
    """Number of words in all hypotheses, known or not."""
    unknown: TokenStats
    other_case: int
    """Number of unknown words that the bundle knows in lower or upper case."""
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
    """One kind of markup, such as the ``▁`` of SentencePiece, in the hypotheses or the references."""

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
    """Statistics of all tokens of the hypotheses and references."""

    tokens: int
    uncovered: Mapping[str, TokenStats]
    """Tokens that need other settings of the normaliser, by kind: filler, variant, multiword, case."""
    unknown: UnknownWords | None
    """None without a vocabulary."""
    integers: TokenStats = TokenStats(0, 0, ())
    """Tokens of the hypotheses, if all are whole numbers, such as word ids, but those of the references are
    not. Otherwise there are none."""
    letters: str = ""
    """Name of an alphabet in which signs are letters, if tokens seem to be written in it; otherwise empty."""
    spacing: str = ""
    """A remark, if texts have no spaces between words (see ``rescorer.text``); otherwise empty."""
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


class WordTally:
    """Counts tokens, and keeps each distinct token once."""

    def __init__(self, drops: Callable[[str], bool] | None = None) -> None:
        """Start to count; ``drops`` says whether the normaliser removes a token, see ``MarkupTally``."""
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
        self, normaliser: Normaliser, vocabulary: frozenset[str] | None = None, read: Normaliser | None = None
    ) -> WordStats:
        """Judge all tokens.

        Args:
            normaliser: gives the words in which errors are counted.
            vocabulary: words that the models know; None if there are no models.
            read: converts texts to the words that the models read; None for ``normaliser``.
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
        """Return the tokens of the hypotheses if they look like ids of a symbol table, otherwise none."""
        spoken, heard = (
            all(token.isascii() and token.isdigit() for token in tokens)
            for tokens in (self._reference_tokens, self._hypothesis_tokens)
        )
        found = heard and not (self._reference_tokens and spoken)
        return self._hypothesis_tokens if found else Counter()

    def _count_unknown(self, normaliser: Normaliser, vocabulary: frozenset[str]) -> UnknownWords:
        words = _normalise_counts(self._hypothesis_tokens, normaliser)
        reference_words = _normalise_counts(self._reference_tokens, normaliser)
        unknown = Counter({word: count for word, count in words.items() if word not in vocabulary})
        in_other_case = (n for word, n in unknown.items() if {word.lower(), word.upper()} & vocabulary)
        return UnknownWords(
            words=words.total(),
            unknown=TokenStats.from_counts(unknown),
            other_case=sum(in_other_case),
            reference_words=reference_words.total(),
            reference_unknown=sum(count for word, count in reference_words.items() if word not in vocabulary),
        )


def classify_uncovered(
    token: str, normaliser: Normaliser, vocabulary: frozenset[str] | None, seen: Mapping[str, int]
) -> str:
    """Name the kind of mark that the normaliser leaves in a token; empty if it leaves none.

    Args:
        vocabulary: words that the bundle knows; None without a bundle. A token whose words are all known has
            no mark.
        seen: all tokens, which show whether a capitalised token also occurs in lower case.
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
    """Whether a normaliser would damage texts in an alphabet in which signs are letters and case matters."""
    settings = normaliser.settings
    return not settings.letters and (settings.punctuation, settings.case) != ("keep", "keep")


def find_letters(tokens: Mapping[str, int]) -> str:
    """Guess in which alphabet tokens are written, of those where signs are letters.

    The result is ``buckwalter`` if tokens have only the signs of that alphabet, ``x-sampa`` if many tokens
    have other signs where letters would stand, and otherwise empty.
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


MAX_EQUAL_EXAMPLES = 3
MAX_EXAMPLE_CHARACTERS = 80


@dataclass(slots=True)
class EqualTexts:
    """Counts texts of a list, or of its reference, that differ although a normaliser gives them the same
    words."""

    normaliser: Normaliser
    mild: Normaliser
    """A normaliser that gives the same words only to texts that are meant to have them; see ``beyond``."""
    texts: int = 0
    """Number of texts that have the same words as another text of their list."""
    beyond: int = 0
    """Number of these texts that differ from the other text in more than is intended: case, punctuation,
    events and variants."""
    beyond_examples: list[tuple[str, str]] = field(default_factory=list)
    _examples: list[tuple[str, str]] = field(default_factory=list)

    @property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """Pairs of texts with the same words; pairs that count for ``beyond`` come first."""
        return tuple(dict.fromkeys([*self.beyond_examples, *self._examples]))[:MAX_EQUAL_EXAMPLES]

    def add(self, texts: Iterable[str]) -> None:
        """Add the texts of a list."""
        by_words: dict[Words, str] = {}
        mild_words: dict[Words, set[Words]] = {}
        for text in dict.fromkeys(texts):
            words = self.normaliser.normalise(text)
            other = by_words.setdefault(words, text)
            if other is text:
                continue
            self.texts += 1
            example = other[:MAX_EXAMPLE_CHARACTERS], text[:MAX_EXAMPLE_CHARACTERS]
            self._examples += [example] * (len(self._examples) < MAX_EQUAL_EXAMPLES)
            # all texts with these words are compared, so that the count does not depend on their order
            seen = mild_words.setdefault(words, {self.mild.normalise(other)})
            if (mild := self.mild.normalise(text)) not in seen:
                seen.add(mild)
                self.beyond += 1
                self.beyond_examples += [example] * (len(self.beyond_examples) < MAX_EQUAL_EXAMPLES)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"texts": self.texts, "beyond_case_and_punctuation": self.beyond, "examples": self.examples}

    def quote_beyond(self) -> str:
        """Quote the examples of ``beyond`` for a sentence."""
        return "; ".join(f"{first!r} = {second!r}" for first, second in self.beyond_examples)


def make_mild_normaliser(settings: NormaliserSettings) -> Normaliser:
    """Make a normaliser that gives the same words only to texts that are meant to be equal.

    Such texts differ in case, punctuation, events or variants, or in tokens that the settings replace or drop
    by name.
    """
    return Normaliser(
        NormaliserSettings(
            language=settings.language,
            drop=tuple(dict.fromkeys((*EVENT_PATTERNS, *settings.drop))),
            fillers=settings.fillers,
            variants=settings.variants,
            letters=settings.letters,
            replace=settings.replace,
        )
    )


def make_bundle_twin(read: Normaliser, compared: Normaliser) -> Normaliser:
    """Make a normaliser that equates only the texts that a bundle's normaliser is meant to equate.

    Such texts are equal when errors are counted, or differ only in words that the bundle's normaliser drops
    by name.

    Args:
        read: normaliser of the bundle, which gives the words that models read.
        compared: normaliser that gives the words in which errors are counted.
    """
    drop = tuple(dict.fromkeys((*compared.settings.drop, *read.settings.drop)))
    return Normaliser(replace(compared.settings, drop=drop, replace=read.settings.replace))


def find_equated(lists: Iterable[Iterable[str]], read: Normaliser, compared: Normaliser) -> EqualTexts:
    """Find texts that the models of a bundle cannot tell apart, although errors between them are counted.

    The reason is that the bundle's normaliser gives such texts the same words.

    Args:
        lists: the texts of each list.
        read, compared: as in ``make_bundle_twin``.
    """
    found = EqualTexts(read, make_bundle_twin(read, compared))
    if read.settings != compared.settings:
        for texts in lists:
            found.add(texts)
    return found


def describe_equated(found: EqualTexts) -> str:
    """Describe in a sentence the differences that a bundle's normaliser hides from the bundle's models."""
    texts = pluralise(found.beyond, "text that differs", "texts that differ")
    return (
        f"the bundle's own normaliser gives its models the same words for {texts} from another of its list: "
        f"{found.quote_beyond()}"
    )

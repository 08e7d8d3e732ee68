"""Statistics of lists, their streams and their words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rescorer.evaluation.list_errors import Totals, to_percent
from rescorer.formats.common import NATS_PER_UNIT
from rescorer.formats.pieces import FoundMarkup, MarkupTally
from rescorer.text import EVENT_PATTERNS, FILLERS, Normaliser


@dataclass(frozen=True, slots=True)
class ListStats:
    """Counts over all lists of a file; the field names are keys of the JSON report."""

    lists: int = 0
    hypotheses: int = 0
    words: int = 0
    """Canonical words of all hypotheses."""
    longest_list: int = 0
    """Largest number of hypotheses per list."""
    single: int = 0
    """Lists with one hypothesis."""
    rejected: int = 0
    same_id: int = 0
    """Lists with the id of an earlier list."""
    id_in_text: int = 0
    """Lists in which every hypothesis starts with the id of the list."""
    tab_in_text: int = 0
    """Lists in which every text has a tab, as where a column of a table was read as a word."""
    duplicates: int = 0
    """Hypotheses with the same text as an earlier one of their list."""
    duplicates_normalised: int = 0
    """Hypotheses with the same canonical words as an earlier one of their list."""
    empty: int = 0
    """Hypotheses without canonical words."""
    with_empty: int = 0
    """Lists with an empty hypothesis."""
    only_empty: int = 0
    """Lists in which every hypothesis is empty."""
    empty_near_best: int = 0
    """Lists in which the best empty hypothesis scores above the best other one, or at most
    ``list_tally.NEAR_NATS`` below."""
    ranked: int = 0
    """Lists whose hypotheses have a field with their rank."""
    without_first: int = 0
    """Ranked lists that lack the first rank."""
    with_gaps: int = 0
    """Ranked lists with gaps between ranks."""
    prefixes: int = 0
    """Distinct prefixes within each list, summed over lists; ``</s>`` counts as a word."""

    unread: tuple[tuple[str, int], ...] = ()
    """Names of hypothesis fields that look like scores, each with the number of lists that have it but no
    streams."""
    unread_option: str = ""
    """The most likely of these fields with its base and sign, as ``--stream NAME=`` takes it."""
    partial_scores: tuple[tuple[str, int], ...] = ()
    """Names of fields that are called like scores and that only some hypotheses of a list without streams
    have, each with the number of lists."""
    unread_lists: tuple[tuple[str, int], ...] = ()
    """Descriptions of arrays that look like hypotheses and were not read as such, each with the number of
    lists."""

    @property
    def prefix_sharing(self) -> float:
        """Number of words and ``</s>`` per distinct prefix: the factor by which a trie reduces the work."""
        return (self.words + self.hypotheses) / self.prefixes if self.prefixes else 1.0


@dataclass(frozen=True, slots=True)
class ErrorStats:
    """Errors of the lists against their references."""

    totals: Totals
    random_errors: float
    """Expected errors if one hypothesis per list is drawn at random."""
    errors_at_depth: tuple[int, ...]
    """Oracle errors of the first 1, 2, … hypotheses per list."""
    without_first_word: int
    """Lists in which no hypothesis is correct, but one equals the reference without its first word."""
    unit: str

    @property
    def random_rate(self) -> float:
        words = self.totals.system.reference_words
        return self.random_errors / words if words else 0.0

    def depth_for(self, share: float) -> int:
        """Return the smallest number of hypotheses per list whose oracle has ``share`` of the full-list
        oracle's gain."""
        first, last = self.errors_at_depth[0], self.errors_at_depth[-1]
        enough = first - share * (first - last)
        return next(i for i, errors in enumerate(self.errors_at_depth, start=1) if errors <= enough)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with the same keys as ``rescorer evaluate`` where that command reports the same
        figure."""
        totals = self.totals
        return {
            "with_reference": totals.lists,
            "unit": self.unit,
            "reference_words": totals.system.reference_words,
            "wer": to_percent(totals.system.rate),
            "oracle_wer": to_percent(totals.oracle.rate),
            "random_wer": to_percent(self.random_rate),
            "worst_wer": to_percent(totals.worst.rate),
            "depth_for_90_percent_of_oracle": self.depth_for(0.9),
            "without_first_word": self.without_first_word,
        }


@dataclass(frozen=True, slots=True)
class StreamStats:
    """One stream over all lists, in nats as read; the field names are keys of the JSON report."""

    name: str
    lists: int
    minimum: float
    maximum: float
    per_word: float
    """Sum of all scores divided by the number of words, where ``</s>`` counts as a word."""
    spread: float
    """Difference between the best and the worst score, mean over lists."""
    whole_numbers: bool
    """Whether no score has decimals."""
    compared: int
    """Lists whose scores are not all equal; the next three fields count only such lists."""
    first_is_best: int
    """Lists whose first hypothesis has the best score."""
    descending: int
    """Lists in which no score is higher than the one before."""
    ascending: int
    """Lists in which no score is lower than the one before: sorted in the wrong direction."""
    length_correlation: float | None
    """Pearson's r between score and number of words over all hypotheses."""
    error_correlation: float | None
    """Pearson's r between score and errors, mean over lists; below 0 if good scores mean few errors."""
    error_t: float | None
    """``error_correlation`` divided by its standard error."""

    def per_word_as(self, base: str, sign: float = 1.0) -> float:
        """Convert ``per_word`` to nats as if the scores had another base or, with sign -1, were costs."""
        return self.per_word * NATS_PER_UNIT[base] * sign

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "per_word_if_log10": self.per_word_as("10"),
            "per_word_if_log2": self.per_word_as("2"),
            "per_word_if_cost": self.per_word_as("e", -1.0),
        }


class StreamTally:
    """Adds up the statistics of one stream, list by list."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._counts: Counter[str] = Counter(lists=0, compared=0, first_is_best=0, descending=0, ascending=0)
        self._minimum, self._maximum = math.inf, -math.inf
        self._words = 0
        self._spread = 0.0
        self._whole = True
        self._moments = np.zeros((3, 3))
        """Sums of products of (1, score, words)."""
        self._correlations: list[float] = []

    def add(self, scores: np.ndarray, n_words: np.ndarray, errors: np.ndarray | None) -> None:
        """Add a list: (H,) scores, words without ``</s>``, and errors if there is a reference."""
        low, high = float(scores.min()), float(scores.max())
        self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)
        self._words += int(n_words.sum()) + len(n_words)
        self._spread += high - low
        self._whole = self._whole and bool((scores == np.rint(scores)).all())
        self._counts["lists"] += 1
        if low < high:
            self._counts.update(
                compared=1,
                first_is_best=bool(scores[0] == high),
                descending=bool((scores[1:] <= scores[:-1]).all()),
                ascending=bool((scores[1:] >= scores[:-1]).all()),
            )
        rows = np.stack([np.ones(len(scores)), scores, n_words])  # (3, H)
        with np.errstate(over="ignore", invalid="ignore"):  # huge scores overflow: no correlation
            self._moments += rows @ rows.T
        if errors is not None and (r := correlate(scores, errors)) is not None:
            self._correlations.append(r)

    def stats(self) -> StreamStats:
        mean, t = mean_and_t(self._correlations)
        return StreamStats(
            name=self.name,
            minimum=self._minimum,
            maximum=self._maximum,
            per_word=float(self._moments[0, 1]) / self._words,
            spread=self._spread / self._counts["lists"],
            whole_numbers=self._whole,
            length_correlation=_correlate_moments(self._moments),
            error_correlation=mean,
            error_t=t,
            **self._counts,
        )


def correlate(left: np.ndarray, right: np.ndarray) -> float | None:
    """Compute Pearson's r; None if one side does not vary or has values so large that they overflow."""
    if not (np.ptp(left) > 0 and np.ptp(right) > 0):
        return None  # checked before subtracting means, whose rounding errors look like variation
    with np.errstate(over="ignore", invalid="ignore"):
        x, y = left - left.mean(), right - right.mean()
        x, y = (side / peak if (peak := np.abs(side).max()) > 0 else side for side in (x, y))
        scale = math.sqrt(float(x @ x) * float(y @ y))
        r = float(x @ y) / scale if scale > 0 else math.nan
    return max(-1.0, min(1.0, r)) if math.isfinite(r) else None


def _correlate_moments(moments: np.ndarray) -> float | None:
    n = moments[0, 0]
    with np.errstate(over="ignore", invalid="ignore"):
        covariance = moments / n - np.outer(moments[0], moments[0]) / n**2
        scale = math.sqrt(max(0.0, float(covariance[1, 1])) * max(0.0, float(covariance[2, 2])))
        r = float(covariance[1, 2]) / scale if scale > 0 and math.isfinite(scale) else math.nan
    return max(-1.0, min(1.0, r)) if math.isfinite(r) else None


def mean_and_t(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Compute the mean, and the mean divided by its standard error; None if undefined."""
    if len(values) < 2:
        return (values[0] if values else None), None
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    return mean, mean / (deviation / math.sqrt(len(values))) if deviation > 0 else None


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
    """A remark about words without spaces between them; see ``rescorer.text.units``."""
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
        self, normaliser: Normaliser, vocabulary: frozenset[str] | None = None, read: Normaliser | None = None
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

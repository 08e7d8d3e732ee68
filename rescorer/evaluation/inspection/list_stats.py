"""Statistics of lists and of their errors, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rescorer.evaluation.error_rate.report import Totals, to_percent


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
    ``tally.NEAR_NATS`` below."""
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

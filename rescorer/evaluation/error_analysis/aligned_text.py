"""Align the words of a hypothesis with those of its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal, NamedTuple

from rapidfuzz.distance import Levenshtein

from rescorer.evaluation.error_rate.alignment import GAP_COST, SUBSTITUTION_COST, trace_alignment
from rescorer.evaluation.error_rate.counting import CountingSettings, Method
from rescorer.types import ErrorUnit

PairKind = Literal["correct", "substitution", "deletion", "insertion"]
Tokens = tuple[str, ...]


class AlignedPair(NamedTuple):
    """A reference word and the hypothesis word beside it."""

    reference: str | None
    """None for an insertion."""
    hypothesis: str | None
    """None for a deletion."""

    @property
    def kind(self) -> PairKind:
        if self.reference is None:
            return "insertion"
        if self.hypothesis is None:
            return "deletion"
        return "correct" if self.reference == self.hypothesis else "substitution"


Alignment = tuple[AlignedPair, ...]


def align_tokens(reference: Tokens, hypothesis: Tokens, method: Method = "levenshtein") -> Alignment:
    """Align two texts so that the errors are those that ``method`` counts; see ``CountingSettings``."""
    if method == "sclite":
        return tuple(
            AlignedPair(None if i is None else reference[i], None if j is None else hypothesis[j])
            for i, j in trace_alignment(reference, hypothesis)
        )
    pairs: list[AlignedPair] = []
    for block in Levenshtein.opcodes(reference, hypothesis):
        expected = reference[block.src_start : block.src_end]
        heard = hypothesis[block.dest_start : block.dest_end]
        if block.tag == "delete":
            pairs += (AlignedPair(word, None) for word in expected)
        elif block.tag == "insert":
            pairs += (AlignedPair(None, word) for word in heard)
        else:
            pairs += map(AlignedPair, expected, heard)
    return tuple(pairs)


class Aligner:
    """Aligns hypotheses with references, by the method that counts their errors.

    Both may have alternatives; the readings that match best count. Transcription marks for optional words
    and fragments are not interpreted: such words are aligned like others.
    """

    def __init__(self, normalise: Callable[[str], Tokens], counting: CountingSettings) -> None:
        self._normalise, self._counting = normalise, counting

    @property
    def unit(self) -> ErrorUnit:
        """What is aligned."""
        return self._counting.unit

    def align(self, reference: str, hypothesis: str | Tokens) -> Alignment:
        """Align a hypothesis, as written or as canonical words, with a reference as written.

        Raises:
            InvalidList: the alternatives are malformed.
        """
        said = self._read(reference)
        heard = self._read(hypothesis) if isinstance(hypothesis, str) else [self.tokens(hypothesis)]
        closest = min(product(said, heard), key=lambda pair: self._distance(*pair))
        return align_tokens(*closest, self._counting.method)

    def _read(self, text: str) -> list[Tokens]:
        """All distinct readings of a text."""
        texts = (" ".join(reading) for reading in self._counting.expand(text))
        return list(dict.fromkeys(self.tokens(self._normalise(text)) for text in texts))

    def tokens(self, words: Tokens) -> Tokens:
        """What is counted in a text: its words, or other units."""
        return self._counting.split(words)

    def _distance(self, reference: Tokens, hypothesis: Tokens) -> int:
        is_sclite = self._counting.method == "sclite"
        weights = (GAP_COST, GAP_COST, SUBSTITUTION_COST) if is_sclite else (1, 1, 1)
        return Levenshtein.distance(reference, hypothesis, weights=weights)


def reference_tokens(alignment: Sequence[AlignedPair]) -> Tokens:
    """The reading of the reference that was aligned."""
    return tuple(pair.reference for pair in alignment if pair.reference is not None)

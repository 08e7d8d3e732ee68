"""Edit distances between all hypotheses of a list.

Tokens are coded as characters, because rapidfuzz compares strings of up to 64 characters with SIMD
instructions, many at a time. Equal hypotheses are compared once. Tokens that all hypotheses have in common at
their beginning or end are left out, since they do not change a distance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from rescorer.errors import LimitExceeded
from rescorer.text import split_units, unit_noun
from rescorer.trie import Words
from rescorer.types import ErrorUnit

Text = TypeVar("Text", str, Words)
MAX_STEPS = 1_000_000_000
"""Largest number of steps for one list; see ``count_steps``. A step takes 2 to 4 ns if hypotheses are
similar, and up to 30 ns if they are long and have nothing in common.

A list within this limit has fewer distinct words than there are characters (1.1 million): n hypotheses of w
words have at most nw distinct words and at least (nw)² / 128 steps."""
ROWS = 64
"""Hypotheses that are compared with all others in one call, which bounds the memory."""
EXPECTED_DISTANCE = 31
"""Hint for rapidfuzz: distances up to this value are found without computing the whole table."""


@dataclass(frozen=True, slots=True)
class CodedList:
    """The distinct hypotheses of a list, with their tokens coded as characters."""

    codes: tuple[str, ...]
    """(D,) distinct hypotheses, one character per token, without what all have in common at either end."""
    index: np.ndarray
    """(H,) int64, position of each hypothesis in ``codes``."""

    @property
    def steps(self) -> int:
        return count_steps([len(code) for code in self.codes])


def count_steps(lengths: Sequence[int]) -> int:
    """Bound the work of comparing all pairs of hypotheses.

    A step compares one token of a hypothesis with up to 64 tokens of another, as the bit-parallel algorithm
    of Myers (1999) and Hyyrö (2003) does.

    Args:
        lengths: number of tokens of each distinct hypothesis.
    """
    return sum(lengths) * sum(length // 64 + 1 for length in lengths) // 2


def code_list(words: Sequence[Words], unit: ErrorUnit = "word") -> CodedList:
    """Code the hypotheses of a list for comparison.

    Args:
        words: canonical words of each hypothesis.
        unit: what a token is; see ``rescorer.text.units``.

    Raises:
        LimitExceeded: the comparison would take more than ``MAX_STEPS``.
    """
    distinct, index = _find_distinct([split_units(hypothesis, unit) for hypothesis in words], unit)
    characters: dict[str, str] = {}
    for hypothesis in distinct:
        for word in hypothesis:
            if word not in characters:
                characters[word] = chr(len(characters))
    code = characters.__getitem__
    return CodedList(tuple("".join(map(code, hypothesis)) for hypothesis in distinct), index)


def code_texts(texts: Sequence[str], unit: ErrorUnit) -> CodedList:
    """Prepare hypotheses whose tokens are characters already; ``unit`` names the tokens in errors.

    Raises:
        LimitExceeded: as in ``code_list``.
    """
    distinct, index = _find_distinct(texts, unit)
    return CodedList(tuple(distinct), index)


def _find_distinct(texts: Sequence[Text], unit: ErrorUnit) -> tuple[list[Text], np.ndarray]:
    """The distinct texts, without what all have in common at either end, and the index of each text."""
    positions: dict[Text, int] = {}
    index = np.array([positions.setdefault(text, len(positions)) for text in texts], dtype=np.int64)
    distinct = _strip_common_ends(list(positions))
    steps = count_steps(list(map(len, distinct)))
    if steps > MAX_STEPS:
        raise LimitExceeded(
            f"comparing {len(distinct):,} distinct hypotheses with up to {max(map(len, distinct)):,} "
            f"{unit_noun(unit)}s takes {steps:,} steps; expected at most {MAX_STEPS:,}; send fewer "
            "hypotheses, or use the decision rule maximum and weights without a reranker",
            field="hypotheses",
        )
    return distinct, index


def _strip_common_ends(texts: list[Text]) -> list[Text]:
    """Remove the longest common prefix of all texts, then the longest common suffix of the rest."""
    n_first = _common_prefix_length(texts)
    rests = [text[n_first:] for text in texts]
    n_last = _common_prefix_length([rest[::-1] for rest in rests])
    return [rest[: len(rest) - n_last] for rest in rests] if n_last else rests


def _common_prefix_length(texts: Sequence[Text]) -> int:
    """Length of the longest common prefix: that of the smallest and the largest text."""
    pairs = zip(min(texts, default=()), max(texts, default=()), strict=False)  # type: ignore[type-var]
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def distance_blocks(codes: Sequence[str]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the upper triangle of the distance matrix in blocks of up to ``ROWS`` rows.

    Yields:
        The first row b of the block, and its distances to the hypotheses from b on, (rows, D − b) int32.
    """
    for begin in range(0, len(codes), ROWS):
        yield (
            begin,
            cdist(
                codes[begin : begin + ROWS],
                codes[begin:],
                scorer=Levenshtein.distance,
                score_hint=EXPECTED_DISTANCE,
                dtype=np.int32,
                workers=1,
            ),
        )


def distance_matrix(words: Sequence[Words], unit: ErrorUnit = "word") -> np.ndarray:
    """Compute the edit distances between all hypotheses of a list, (H, H) int32, symmetric.

    This is for those who weigh the same distances many times, such as a search for the best temperature;
    ``expected_errors`` does not keep the matrix.

    Raises:
        LimitExceeded: as in ``code_list``.
    """
    coded = code_list(words, unit)
    matrix = np.zeros((len(coded.codes), len(coded.codes)), dtype=np.int32)
    for begin, block in distance_blocks(coded.codes):
        matrix[begin : begin + len(block), begin:] = block
        matrix[begin:, begin : begin + len(block)] = block.T
    return matrix[coded.index[:, None], coded.index]

"""Generate synthetic n-best lists whose hypotheses share prefixes as a recogniser's hypotheses do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer.types import Hypothesis, NBestList

ALTERNATIVES = 4
"""Number of alternative words at each position where the hypotheses of a list differ."""
POSITION_EXPONENT = 1.2
"""The relative position of a change in a sentence is u^POSITION_EXPONENT, with u uniform. With this value,
100 hypotheses of 20 words have 2.2 words per distinct prefix, like the 100-best lists of a real
recogniser."""
DISTINCT_WORDS = 10_000


@dataclass(frozen=True, slots=True)
class ListShape:
    """Number of lists, hypotheses per list, and words per hypothesis."""

    lists: int
    hypotheses: int
    words: int

    @classmethod
    def parse(cls, text: str) -> ListShape:
        """Parse a shape such as ``1000x100x20``.

        Raises:
            ConfigError: the text is not three positive integers separated by ``x``.
        """
        match = re.fullmatch(r"([1-9]\d*)[x×]([1-9]\d*)[x×]([1-9]\d*)", text)
        if not match:
            raise ConfigError(f"{text!r}: expected LISTSxHYPOTHESESxWORDS, such as 1000x100x20")
        return cls(*map(int, match.groups()))


def synthetic_lists(shape: ListShape, seed: int = 1) -> Iterator[NBestList]:
    """Generate lists of words that follow Zipf's law.

    Each hypothesis is an earlier one of its list with one word substituted, deleted or inserted.
    """
    random = np.random.default_rng(seed)
    probs = 1 / np.arange(1, DISTINCT_WORDS + 1)
    probs /= probs.sum()
    names = [f"w{rank}" for rank in range(1, DISTINCT_WORDS + 1)]
    for number in range(shape.lists):
        ranks = random.choice(DISTINCT_WORDS, p=probs, size=(shape.words + 1, ALTERNATIVES))
        alternatives = [[names[rank] for rank in row] for row in ranks.tolist()]
        hypotheses = [[row[0] for row in alternatives[: shape.words]]]
        while len(hypotheses) < shape.hypotheses:
            earlier = hypotheses[int(random.integers(len(hypotheses)))]
            position = int(len(earlier) * random.random() ** POSITION_EXPONENT)
            word = alternatives[min(position, shape.words)][int(random.integers(ALTERNATIVES))]
            edit = int(random.choice([0, 1, 2], p=[0.1, 0.8, 0.1]))  # insertion, substitution, deletion
            hypotheses.append(earlier[:position] + [word] * (edit < 2) + earlier[position + (edit > 0) :])
        scores = -np.sort(random.gamma(2.0, 50.0, size=shape.hypotheses))
        yield NBestList(
            id=f"synthetic-{number:06}",
            hypotheses=tuple(Hypothesis(" ".join(words)) for words in hypotheses),
            streams={"acoustic": tuple(np.sort(scores)[::-1].round(4).tolist())},
        )

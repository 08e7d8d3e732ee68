"""Owns synthetic n-best lists, whose hypotheses share prefixes as those of recognisers do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer.types import Hypothesis, NBestList

ALTERNATIVES = 4
"""Words that a recogniser hesitates between at one place."""
LATE = 1.2
"""Changes fall at u^LATE of a sentence, u being uniform: with it 100 hypotheses of 20 words have 2.2 words a
distinct prefix, as the 100-best lists of a real recogniser have."""
DISTINCT_WORDS = 10_000


@dataclass(frozen=True, slots=True)
class ListShape:
    """How many lists, of how many hypotheses, of how many words."""

    lists: int
    hypotheses: int
    words: int

    @classmethod
    def parse(cls, text: str) -> ListShape:
        """From ``1000x100x20``; raises ConfigError where that is not what it is."""
        match = re.fullmatch(r"([1-9]\d*)[x×]([1-9]\d*)[x×]([1-9]\d*)", text)
        if not match:
            raise ConfigError(f"{text!r}: expected LISTSxHYPOTHESESxWORDS, such as 1000x100x20")
        return cls(*map(int, match.groups()))


def synthetic_lists(shape: ListShape, seed: int = 1) -> Iterator[NBestList]:
    """Lists of words that follow Zipf's law; each hypothesis is an earlier one with one word changed, taken
    out or put in."""
    random = np.random.default_rng(seed)
    chances = 1 / np.arange(1, DISTINCT_WORDS + 1)
    chances /= chances.sum()
    names = [f"w{rank}" for rank in range(1, DISTINCT_WORDS + 1)]
    for number in range(shape.lists):
        drawn = random.choice(DISTINCT_WORDS, p=chances, size=(shape.words + 1, ALTERNATIVES))
        alternatives = [[names[each] for each in row] for row in drawn.tolist()]
        hypotheses = [[row[0] for row in alternatives[: shape.words]]]
        while len(hypotheses) < shape.hypotheses:
            earlier = hypotheses[int(random.integers(len(hypotheses)))]
            place = int(len(earlier) * random.random() ** LATE)
            there = alternatives[min(place, shape.words)][int(random.integers(ALTERNATIVES))]
            kept = int(random.choice([0, 1, 2], p=[0.1, 0.8, 0.1]))  # put in, change, take out
            hypotheses.append(earlier[:place] + [there] * (kept < 2) + earlier[place + (kept > 0) :])
        scores = -np.sort(random.gamma(2.0, 50.0, size=shape.hypotheses))
        yield NBestList(
            id=f"synthetic-{number:06}",
            hypotheses=tuple(Hypothesis(" ".join(words)) for words in hypotheses),
            streams={"acoustic": tuple(np.sort(scores)[::-1].round(4).tolist())},
        )

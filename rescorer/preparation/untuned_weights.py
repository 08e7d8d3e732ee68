"""Recognise scores of end-to-end models under weights of language models that nobody has tuned for them.

An acoustic model's score is a sum over frames: log-densities of a hundred nats and more per word, which a
language model at weight 1 barely moves. The score of an encoder-decoder, a transducer or a CTC model is ln P
of the text given the audio: a fraction of a nat to a few nats per word, with the model's own knowledge of the
language in it. A language model at weight 1 outweighs such scores many times, and can triple the errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rescorer.types import NBestList, Weights

MAX_NATS_PER_WORD = 3.0
"""Largest mean of -score per word of an end-to-end model. Measured: Moonshine 0.4 and the log scores of
DSTC10 2.3, but PocketSphinx 100, Switchboard's recogniser 277; a language model alone has 4 to 9."""
MIN_RATIO = 0.5
"""Smallest weight of the language models, relative to that of the scores, that is worth a warning."""
MIN_LISTS = 5
"""Number of lists from which scores are judged."""


@dataclass(frozen=True, slots=True)
class UntunedWeights:
    """Weights that were never tuned and give language models too much say over scores."""

    name: str
    """Name of the weights."""
    streams: tuple[str, ...]
    """The streams that have a weight."""
    nats_per_word: float
    """Mean score per word, where the end of the sentence counts as a word; 0 or below."""

    def describe(self) -> str:
        """What is wrong, without the remedy."""
        scores = ", ".join(map(repr, self.streams))
        return (
            f"weights {self.name!r} were never tuned, and the scores {scores} look like those of an "
            f"end-to-end model ({self.nats_per_word:.2g} nats per word): it has a language model inside, and "
            "an untuned weight of another can triple its errors"
        )


def find_untuned_weights(lists: Sequence[NBestList], weights: Weights) -> UntunedWeights | None:
    """Judge lists and weights; None if there is nothing to warn about, or too little to judge."""
    streams = {name: weight for name, weight in weights.streams.items() if weight}
    if weights.tuned_on or not streams or any(weights.rerankers.values()):
        return None
    heaviest = max(map(abs, streams.values()))
    if sum(weights.lm.values()) < MIN_RATIO * heaviest:
        return None
    sums = [
        (_sum_scores(nbest, streams) / heaviest, max(map(max, _columns(nbest, streams))), _count_words(nbest))
        for nbest in lists
        if nbest.hypotheses and streams.keys() <= nbest.streams.keys()
    ]
    total, best = math.fsum(part for part, _, _ in sums), max((top for _, top, _ in sums), default=0.0)
    # The best of every list at exactly 0 is a rank or a difference, and a log-probability is never above 0.
    is_relative = all(top == 0.0 for _, top, _ in sums)
    if len(sums) < MIN_LISTS or best > 0.0 or is_relative or not math.isfinite(total):
        return None
    per_word = total / sum(words for _, _, words in sums)
    return UntunedWeights(weights.name, tuple(streams), per_word) if -per_word <= MAX_NATS_PER_WORD else None


def _columns(nbest: NBestList, streams: dict[str, float]) -> list[Sequence[float]]:
    return [nbest.streams[name] for name in streams]


def _sum_scores(nbest: NBestList, streams: dict[str, float]) -> float:
    return math.fsum(weight * math.fsum(nbest.streams[name]) for name, weight in streams.items())


def _count_words(nbest: NBestList) -> int:
    return sum(len(hypothesis.text.split()) + 1 for hypothesis in nbest.hypotheses)

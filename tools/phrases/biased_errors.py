"""Count the errors of biased words and of all others, as the published figures are counted."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from rescorer.evaluation.error_rate.alignment import trace_alignment
from rescorer.trie import Words


class BiasedErrors(NamedTuple):
    """Errors and reference words of some texts."""

    errors: int = 0
    words: int = 0
    biased_errors: int = 0
    """Biased words that are missing, replaced or inserted."""
    biased_words: int = 0

    def rates(self) -> dict[str, float]:
        """WER, U-WER (words that are not biased) and B-WER (those that are), in percent."""
        others = (self.errors - self.biased_errors, self.words - self.biased_words)
        pairs = {"WER": self[:2], "U-WER": others, "B-WER": self[2:]}
        return {name: 100 * errors / max(words, 1) for name, (errors, words) in pairs.items()}


def count_biased_errors(reference: Words, hypothesis: Words, listed: Collection[str]) -> BiasedErrors:
    """Align two texts as NIST's sclite does, and count all errors, and those of the words of a list.

    Given the rare words of each reference, the counts are those published for the recognisers' outputs.
    """
    inside = [word in listed for word in reference]
    if reference == hypothesis:
        return BiasedErrors(0, len(reference), 0, sum(inside))
    errors = biased = 0
    for i, j in trace_alignment(reference, hypothesis):
        if i is None:
            wrong, is_biased = True, j is not None and hypothesis[j] in listed
        else:
            wrong, is_biased = j is None or reference[i] != hypothesis[j], inside[i]
        errors += wrong
        biased += wrong and is_biased
    return BiasedErrors(errors, len(reference), biased, sum(inside))


def add_up(counts: Iterable[BiasedErrors]) -> BiasedErrors:
    """Sum counts over utterances."""
    return BiasedErrors(*np.sum(list(counts), axis=0).tolist())

"""Check lists and their words before anything is computed from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rescorer.errors import MAX_QUOTED_CHARS, InvalidList, quote, shorten
from rescorer.types import Hypothesis, NBestList, Weights

if TYPE_CHECKING:
    from rescorer.trie import Words

MAX_WORDS = 100_000
"""Maximum number of words in a hypothesis or context; no real sentence is longer."""


def check_lengths(list_id: str, words: Sequence[Words], context: Words) -> None:
    """Raise InvalidList if a hypothesis or the context is longer than ``MAX_WORDS``."""
    if max(map(len, words), default=0) > MAX_WORDS:
        i = next(i for i, hypothesis_words in enumerate(words) if len(hypothesis_words) > MAX_WORDS)
        message = f"{len(words[i]):,} words; expected at most {MAX_WORDS:,}"
        raise InvalidList(message, list_id=list_id, hypothesis=i, field="text")
    if len(context) > MAX_WORDS:
        message = f"{len(context):,} words; expected at most {MAX_WORDS:,}"
        raise InvalidList(message, list_id=list_id, field="context")


def check_list(nbest: NBestList, weights: Weights, reserved_names: frozenset[str] = frozenset()) -> None:
    """Check that a list can be scored under these weights.

    Args:
        reserved_names: component names that streams may not have.

    Raises:
        InvalidList: the list cannot be scored; the error names the field.
    """

    def invalid(message: str, field: str = "", hypothesis: int | None = None) -> InvalidList:
        return InvalidList(message, list_id=nbest.id, field=field, hypothesis=hypothesis)

    if not nbest.hypotheses:
        raise invalid("no hypotheses; expected at least one", "hypotheses")
    for name, values in nbest.streams.items():
        field = f'streams["{name}"]'
        if len(values) != len(nbest.hypotheses):
            raise invalid(
                f"{len(values)} scores for {len(nbest.hypotheses)} hypotheses; expected one per hypothesis",
                field,
            )
        if not all(map(math.isfinite, values)):
            i = next(i for i, value in enumerate(values) if not math.isfinite(value))
            raise invalid(f"{values[i]}; expected a finite number", field, i)
    for name, weight in weights.streams.items():
        if weight != 0 and name not in nbest.streams:
            streams = ", ".join(sorted(nbest.streams)) or "none"
            message = f"missing, but weights {quote(weights.name)} need it; the list has: {streams}"
            raise invalid(message, f'streams["{name}"]')
    for index, utterance in enumerate(nbest.previous):
        confidence = utterance.confidence
        if not (isinstance(confidence, (int, float)) and 0 <= confidence <= 1):
            message = f"{shorten(repr(confidence), MAX_QUOTED_CHARS)}; expected a number from 0 to 1"
            raise invalid(message, f"previous[{index}].confidence")
    reserved = sorted(set(nbest.streams) & reserved_names)
    if reserved:
        raise invalid(f"the name {reserved[0]!r} is reserved; send the stream under another name", "streams")


def find_wrong_hypothesis(nbest: NBestList) -> InvalidList | None:
    """Return the error about the first hypothesis that is not a ``Hypothesis`` with a text, if there is one.

    For use after an operation on the hypotheses has failed: valid lists are not delayed by it.
    """
    for index, hypothesis in enumerate(nbest.hypotheses):
        if not isinstance(hypothesis, Hypothesis):
            message = f"expected a Hypothesis, got {type(hypothesis).__name__}"
            if isinstance(hypothesis, str):
                message += f"; write Hypothesis({quote(hypothesis)})"
            return InvalidList(message, list_id=nbest.id, hypothesis=index)
        if not isinstance(hypothesis.text, str):
            message = f"expected a string, got {type(hypothesis.text).__name__}"
            return InvalidList(message, list_id=nbest.id, hypothesis=index, field="text")
    return None

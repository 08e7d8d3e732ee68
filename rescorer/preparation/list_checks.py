"""Check lists and their words before anything is computed from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rescorer.errors import MAX_QUOTED_CHARS, InvalidList, quote, shorten
from rescorer.preparation.unread_scores import find_unread_fields, name_fields
from rescorer.trie import Words
from rescorer.types import Hypothesis, NBestList, Weights

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
            raise invalid(_describe_missing(nbest, weights), f'streams["{name}"]')
    for index, utterance in enumerate(nbest.previous):
        confidence = utterance.confidence
        if not (isinstance(confidence, (int, float)) and 0 <= confidence <= 1):
            message = f"{shorten(repr(confidence), MAX_QUOTED_CHARS)}; expected a number from 0 to 1"
            raise invalid(message, f"previous[{index}].confidence")
    reserved = sorted(set(nbest.streams) & reserved_names)
    if reserved:
        raise invalid(f"the name {reserved[0]!r} is reserved; send the stream under another name", "streams")


def _describe_missing(nbest: NBestList, weights: Weights) -> str:
    """Say what a list has instead of a stream that weights need, and which weights are safe to start from."""
    streams = ", ".join(sorted(nbest.streams)) or "none"
    message = f"missing, but weights {quote(weights.name)} need it; the list has: {streams}"
    if any(weights.streams.get(name) for name in nbest.streams):
        return message
    if len(nbest.streams) == 1:
        alone = f"weights with streams={{{quote(streams)}: 1}} and lm={{'mixture': 0}}"
        return f"{message}; {alone} rank by it alone, and `rescorer tune` finds better ones from there"
    likely = [field for field in find_unread_fields([nbest]) if field.is_likely]
    if likely and not nbest.streams:
        return f"{message}; numbers in fields of its hypotheses are not read as scores: {name_fields(likely)}"
    return message


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

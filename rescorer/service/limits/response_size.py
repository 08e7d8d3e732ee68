"""Bound the size of a response before anything is scored for it.

A response repeats the name of every component for every hypothesis, so it can be thousands of times as large
as its request. The bounds follow from the request and the bundle alone. They are at most a few times too
high, except for lists of a few hypotheses, since their status could be an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rescorer.bundle import Bundle
from rescorer.errors import LimitExceeded
from rescorer.protocol.status import MAX_TEXT_CHARS
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.score_combination import MIXTURE
from rescorer.scoring.components import BoundOptions, Outline, PreparedList
from rescorer.scoring.ranker import ListRanker
from rescorer.text import utf8_bytes
from rescorer.types import Calibration, Weights

RescoreRequest = pb.RescoreRequest | pb.RescoreStreamRequest

HYPOTHESIS_BYTES = 80
"""Upper bound of a rescored hypothesis, without its components and what it repeats of the request: ranks,
total, posterior, confidence, expected errors, place in the merged ranks, and lengths."""
WORD_BYTES = 24
"""Upper bound of the confidence of a word, without the word."""
CONSENSUS_WORD_BYTES = 48
"""Upper bound of a word of a consensus, without the word itself."""
COMPONENT_BYTES = 24
"""Upper bound of a component, or of the log-probabilities of a text by one model, without name and values."""
LIST_BYTES = 256
"""Upper bound of a rescored list without hypotheses and without what it repeats of the request."""
LIST_STATUS_BYTES = 6 * 4 * MAX_TEXT_CHARS
"""Upper bound of the status of a list, which contains each text up to six times."""
EMPTY_WEIGHTS_BYTES = 96
"""Upper bound of weights without names, with a default value for each part."""
RESPONSE_BYTES = 2048
"""Upper bound of a response without lists, texts and weights: timing and the model's label."""


def check_response_size(request: RescoreRequest, request_bytes: int, ranker: ListRanker, limit: int) -> int:
    """Return a bound of the size of a response in bytes.

    Raises:
        LimitExceeded: If the bound is above the limit, although no list alone is. A list that is above the
            limit alone gets an error of its own, see ``check_list_response_size``.
    """
    weights, parts = requested_parts(request, ranker.bundle)
    total = RESPONSE_BYTES + weights_bytes(request, ranker.bundle) + request_bytes
    for index, nbest in enumerate(request.lists):
        list_bytes = list_response_bytes(Outline(nbest, weights, request), ranker, parts, limit)
        total += LIST_STATUS_BYTES if list_bytes > limit else list_bytes
        if total > limit:
            raise LimitExceeded(
                f"the answers to the first {index + 1} of {len(request.lists)} lists could have {total} "
                f"bytes; expected at most {limit} (max_response_bytes); send fewer lists per message, or "
                "shorter names of streams",
                field=f"lists[{index}]",
            )
    return total


def check_list_response_size(
    nbest: pb.NBestList, request: RescoreRequest, ranker: ListRanker, options: BoundOptions, limit: int
) -> None:
    """Raise LimitExceeded if the answer to a list of a request, whose options are bound, could exceed the
    limit."""
    calibration = options.weights.calibration
    is_calibrated = calibration is not None and calibration.word is not None
    parts = AnswerParts(is_calibrated, options.decision.kind == "confusion_network")
    outline = Outline(nbest, options.weights, request)
    if (size := list_response_bytes(outline, ranker, parts, limit)) > limit:
        raise LimitExceeded(
            f"the answer to {len(nbest.hypotheses)} hypotheses with {len(nbest.streams)} streams could have "
            f"{size} bytes; expected at most {limit} (max_response_bytes); send fewer hypotheses or streams, "
            "or shorter names",
            field="hypotheses",
        )


def check_text_response_size(
    request: pb.ScoreTextRequest, prepared: Sequence[PreparedList], bundle: Bundle, limit: int
) -> int:
    """Return a bound of the size of a response to ScoreText in bytes.

    Raises:
        LimitExceeded: If the bound is above the limit.
    """
    names = (*bundle.model_kinds, MIXTURE)
    per_text = HYPOTHESIS_BYTES + names_bytes(names)
    total = RESPONSE_BYTES + weights_bytes(request, bundle) + len(request.texts) * per_text
    for nbest in prepared:
        for hypothesis, words in zip(nbest.nbest.hypotheses, nbest.words, strict=True):
            # A word has its text, a flag, and a value of 8 bytes per model; one more value is for </s>.
            total += utf8_bytes(hypothesis.text) + (8 * len(names) + 4) * (len(words) + 1)
            total += sum(map(len, words)) if hypothesis.text.isascii() else sum(map(utf8_bytes, words))
    if total > limit:
        raise LimitExceeded(
            f"the scores of {len(request.texts)} texts could have {total} bytes; expected at most {limit} "
            "(max_response_bytes); send fewer or shorter texts per request",
            field="texts",
        )
    return total


def list_response_bytes(outline: Outline, ranker: ListRanker, parts: AnswerParts, limit: int) -> int:
    """Return a bound of the size of the answer to a list, without what it repeats of the list.

    Args:
        parts: parts that the answer may have.
        limit: if the numbers of hypotheses and streams alone are beyond it, nothing else is looked at.
    """
    nbest, bundle = outline.nbest, ranker.bundle
    least = len(nbest.hypotheses) * (HYPOTHESIS_BYTES + COMPONENT_BYTES * len(nbest.streams))
    if least > limit:
        return max(least, LIST_STATUS_BYTES)
    names = [name for component in ranker.components for name in component.column_names(outline)]
    row_bytes = HYPOTHESIS_BYTES + names_bytes(names)
    total = LIST_BYTES + len(nbest.hypotheses) * row_bytes
    added = [growth for component in ranker.components if (growth := component.growth(outline))]
    has_words = parts.confidences or parts.consensus or added
    texts = [hypothesis.text for hypothesis in nbest.hypotheses] if has_words else []
    for growth in added:
        total += growth.n_hypotheses * (row_bytes + growth.bytes_each)
        texts += [growth.text] * growth.n_hypotheses
    if parts.confidences:
        total += max((WORD_BYTES * len(text.split()) + utf8_bytes(text) for text in texts), default=0)
    if parts.consensus:
        # A slot decides on a word only if words have half of its posteriors or more. So a consensus has at
        # most twice the words of the longest hypothesis, which has at most half as many words as bytes.
        words_bytes = [utf8_bytes(text) * bundle.normaliser.max_growth(text) for text in texts]
        total += CONSENSUS_WORD_BYTES * (max(words_bytes, default=0) + 1) + sum(words_bytes)
    return max(total, LIST_STATUS_BYTES)


class AnswerParts(NamedTuple):
    """Parts of an answer that not all answers have, besides what components add."""

    confidences: bool
    """The words of the best hypothesis, with confidences."""
    consensus: bool
    """Words of any hypotheses."""


def requested_parts(request: RescoreRequest, bundle: Bundle) -> tuple[Weights | pb.Weights, AnswerParts]:
    """Return the weights of a request, which may be unknown or wrong yet, and the parts that it asks for."""
    weights: Weights | pb.Weights
    network = pb.DECISION_KIND_CONFUSION_NETWORK
    if request.WhichOneof("weighting") == "weights":
        weights = request.weights
        parts = AnswerParts(weights.calibration.HasField("word"), weights.decision.kind == network)
    else:
        weights = bundle.weights.get(request.weights_name or "default", Weights())
        calibration = weights.calibration
        is_calibrated = calibration is not None and calibration.word is not None
        parts = AnswerParts(is_calibrated, weights.decision.kind == "confusion_network")
    if request.HasField("decision"):
        parts = parts._replace(consensus=request.decision.kind == network)
    return weights, parts


def weights_bytes(request: RescoreRequest | pb.ScoreTextRequest, bundle: Bundle) -> int:
    """Return a bound of the size of the weights in a response, which may have the λ of the bundle."""
    if request.WhichOneof("weighting") == "weights":
        return EMPTY_WEIGHTS_BYTES + request.weights.ByteSize() + names_bytes(bundle.model_kinds)
    weights = bundle.weights.get(request.weights_name or "default")
    if weights is None:  # the request will be refused
        return 0
    maps = (weights.streams, weights.lm, weights.mixture, weights.rerankers, weights.components)
    names = (*(name for part in maps for name in part), *weights.tuned_on, weights.name)
    return EMPTY_WEIGHTS_BYTES + names_bytes(names) + calibration_bytes(weights.calibration)


def calibration_bytes(calibration: Calibration | None) -> int:
    """Return a bound of the size of a calibration: two numbers per point, and the temperature."""
    if calibration is None:
        return 0
    maps = [part for part in (calibration.utterance, calibration.word) if part is not None]
    return EMPTY_WEIGHTS_BYTES + sum(EMPTY_WEIGHTS_BYTES + 16 * len(part.posteriors) for part in maps)


def names_bytes(names: Iterable[str]) -> int:
    return sum(COMPONENT_BYTES + utf8_bytes(name) for name in names)

"""Check requests before costly work is done for them: their sizes, their work, and the sizes of answers.

What a client sends is counted first, then the steps of searching and deciding and the words to score, which
components state before anything is built. A response repeats the name of every component for every
hypothesis, so it can be thousands of times as large as its request; its bound follows from the request and
the bundle alone. It is at most a few times too high, except for lists of a few hypotheses, since their status
could be an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from google.protobuf.struct_pb2 import Value

from rescorer.decision import estimate_steps
from rescorer.errors import InputError, LimitExceeded
from rescorer.models.bundle import Bundle
from rescorer.phrases import check_set_names
from rescorer.protocol.messages import MAX_TEXT_CHARS
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.scoring.batch import count_distinct
from rescorer.scoring.components import BoundOptions, Outline, PreparedList
from rescorer.scoring.ranker import ListRanker
from rescorer.service.settings import ServiceSettings
from rescorer.text import utf8_bytes
from rescorer.types import Weights
from rescorer.weights import MIXTURE

NAMES_OF_WEIGHTS = ("streams", "lm", "mixture", "rerankers", "components", "tuned_on")
"""Fields of weights that are, or have, names."""
MAX_WEIGHT_NAMES = 131_072
"""Largest number of all these names, of which the fingerprints of the tuning lists are the most."""


def check_request(request: pb.RescoreRequest | pb.RescoreStreamRequest, settings: ServiceSettings) -> None:
    """Raise LimitExceeded if a request has too many elements in a repeated field, or a name that is too long.

    A message of a few megabytes can have millions of empty elements, which take far more memory and time than
    its size suggests. So they are counted before any of them is looked at.
    """
    _check_count(len(request.lists), "lists", settings, "max_lists")
    n_lists = settings.max_lists
    for field, setting in (("hypotheses", "max_hypotheses"), ("streams", "max_score_streams")):
        # a list that has too many by itself gets an error, but the others wait with all of it in memory
        count = sum(len(getattr(nbest, field)) for nbest in request.lists)
        if count > (limit := n_lists * getattr(settings, setting)):
            expected = f"expected at most {limit} in {n_lists} lists ({setting}, max_lists)"
            raise LimitExceeded(f"{count} {field}; {expected}", field=field)
    n_previous = sum(len(nbest.previous) for nbest in request.lists)
    if n_previous > settings.max_previous:
        expected = f"expected at most {settings.max_previous} (max_previous); send the newest of each list"
        raise LimitExceeded(f"{n_previous} utterances; {expected}", field="previous")
    phrases = [request.phrases, *(nbest.phrases for nbest in request.lists)]
    n_phrases = sum(map(len, phrases))
    _check_count(n_phrases, "phrases", settings, "max_phrases")
    n_phrases += sum(len(phrase.spellings) for phrase in chain.from_iterable(phrases))
    _check_count(n_phrases, "phrases", settings, "max_phrases")
    check_set_names(request.phrase_lists)
    if (n_values := count_values(request, settings.max_field_values)) > settings.max_field_values:
        expected = f"expected at most {settings.max_field_values} (max_field_values)"
        raise LimitExceeded(f"at least {n_values} values in lists and hypotheses; {expected}", field="fields")
    _check_names(request, settings.max_name_chars)
    _check_each(request.phrase_lists, settings.max_name_chars, "phrase_lists[{}]")


def count_values(request: pb.RescoreRequest | pb.RescoreStreamRequest, limit: int) -> int:
    """Count the values in the clients' fields of lists and hypotheses, those within others too.

    Counting ends as soon as there are more than the limit.
    """
    hypotheses = chain.from_iterable(nbest.hypotheses for nbest in request.lists)
    owners: Iterable[pb.NBestList | pb.Hypothesis] = chain(request.lists, hypotheses)
    waiting: list[Iterable[Value]] = []
    count = 0
    for owner in owners:
        if owner.HasField("fields"):
            count += len(owner.fields.fields)
            waiting.append(owner.fields.fields.values())
        while waiting and count <= limit:
            for value in waiting.pop():
                kind = value.WhichOneof("kind")
                if kind == "struct_value":
                    count += len(value.struct_value.fields)
                    waiting.append(value.struct_value.fields.values())
                elif kind == "list_value":
                    count += len(value.list_value.values)
                    waiting.append(value.list_value.values)
        if count > limit:
            break
    return count


def check_list(nbest: pb.NBestList, settings: ServiceSettings) -> None:
    """Raise LimitExceeded if a list has too many hypotheses or streams, one of its texts too many words, or
    if its id or the name of a stream is too long."""
    _check_count(len(nbest.hypotheses), "hypotheses", settings, "max_hypotheses")
    _check_count(len(nbest.streams), "streams", settings, "max_score_streams")
    _check_name(nbest.id, settings.max_name_chars, "id")
    names, texts = settings.max_name_chars, settings.max_words
    _check_each((stream.name for stream in nbest.streams), names, "streams[{}].name")
    _check_texts((hypothesis.text for hypothesis in nbest.hypotheses), texts, "hypotheses[{}].text")
    _check_words(nbest.context, texts, "context")
    _check_texts((utterance.text for utterance in nbest.previous), texts, "previous[{}].text")
    _check_each((utterance.speaker for utterance in nbest.previous), names, "previous[{}].speaker")


def check_texts(request: pb.ScoreTextRequest, settings: ServiceSettings) -> None:
    """Raise LimitExceeded if a request has too many texts, one of them too many words, or too long a name."""
    _check_count(len(request.texts), "texts", settings, "max_hypotheses")
    _check_names(request, settings.max_name_chars)
    _check_texts(request.texts, settings.max_words, "texts[{}]")
    _check_words(request.context, settings.max_words, "context")


def _check_count(count: int, field: str, settings: ServiceSettings, setting: str) -> None:
    limit = getattr(settings, setting)
    if count > limit:
        raise LimitExceeded(f"{count} {field}; expected at most {limit} ({setting})", field=field)


def _check_names(
    request: pb.RescoreRequest | pb.RescoreStreamRequest | pb.ScoreTextRequest, limit: int
) -> None:
    """Check the names of the model and of the weights."""
    n_names = sum(len(getattr(request.weights, field)) for field in NAMES_OF_WEIGHTS)
    if n_names > MAX_WEIGHT_NAMES:
        raise LimitExceeded(f"{n_names} names; expected at most {MAX_WEIGHT_NAMES}", field="weights")
    _check_name(request.model, limit, "model")
    _check_name(request.weights_name, limit, "weights_name")
    if request.HasField("weights"):
        weights = request.weights
        _check_name(weights.name, limit, "weights.name")
        for field in NAMES_OF_WEIGHTS:
            _check_each(getattr(weights, field), limit, f"a name in weights.{field}")


def _check_name(name: str, limit: int, field: str) -> None:
    _check_each((name,), limit, field)


def _check_each(names: Iterable[str], limit: int, field: str) -> None:
    """Check names; ``field`` says where they are, with braces for the index."""
    for index, name in enumerate(names):
        if len(name) > limit:
            expected = f"expected at most {limit} (max_name_chars)"
            raise LimitExceeded(f"{len(name)} characters; {expected}", field=field.format(index))


def _check_texts(texts: Iterable[str], limit: int, field: str) -> None:
    """Check the words of texts; ``field`` says where they are, with braces for the index."""
    for index, text in enumerate(texts):
        if 2 * len(text) > limit:  # seldom; no character counts more than twice
            _check_words(text, limit, field.format(index))


def _check_words(text: str, limit: int, field: str) -> None:
    # The normaliser may split words at hyphens and underscores: count them too, so that a long token cannot
    # get around the limit.
    words = len(text.split()) + text.count("-") + text.count("_")
    if words > limit:
        raise LimitExceeded(f"{words} words; expected at most {limit} (max_words)", field=field)


class SearchBudget:
    """The steps that searching the lists of a request may take, for phrases and for what sounds like them.

    Args:
        n_lists: number of lists of the request.
        limit: largest number of steps, ``max_search_steps``.
    """

    def __init__(self, n_lists: int, limit: int) -> None:
        self._n_lists, self._limit = n_lists, limit
        self._n_begun = self._steps = self._list_steps = 0

    def begin_list(self) -> None:
        self._n_begun += 1
        self._list_steps = 0

    def spend(self, steps: int) -> None:
        """Count a search of the current list before it begins.

        Raises:
            LimitExceeded: the list, or all lists so far, would take too long.
        """
        self._list_steps += steps
        expected = f"expected at most {self._limit} (max_search_steps); send fewer hypotheses or phrases"
        if self._list_steps > self._limit:
            message = f"finding its phrases could take {self._list_steps} steps; {expected}"
            raise LimitExceeded(message, field="phrases")
        self._steps += steps
        if self._steps > self._limit:
            lists = f"the first {self._n_begun} of {self._n_lists} lists"
            message = f"finding the phrases of {lists} could take {self._steps} steps; {expected} per message"
            raise RequestTooCostly(message, field=f"lists[{self._n_begun - 1}]")


class RequestTooCostly(LimitExceeded):
    """The lists of a request exceed a limit together, although none does alone."""


def limit_words(
    lists: Sequence[PreparedList | InputError],
    limit: int,
    field: str = "hypotheses",
    *,
    backward: bool = False,
) -> tuple[tuple[PreparedList | InputError, ...], int]:
    """Return the lists, with an error in place of each that has too many words, and the number of all words.

    Args:
        backward: whether a backward model scores them too; see ``plan_batches``.

    Raises:
        LimitExceeded: the lists have too many words together, although none does alone.
    """
    tokens = sum(count_tokens(prepared) for prepared in lists if isinstance(prepared, PreparedList))
    if tokens <= limit:
        return tuple(lists), tokens
    expected = f"expected at most {limit} (max_request_words)"
    expected += "" if backward else "; words shared from the start count once"
    tokens, limited = 0, list[PreparedList | InputError]()
    for index, prepared in enumerate(lists):
        if isinstance(prepared, PreparedList):
            list_tokens = count_distinct(prepared.words, prepared.history, backward=backward)
            if list_tokens > limit:
                prepared = LimitExceeded(f"{list_tokens} words; {expected}", field=field)
            elif tokens + list_tokens > limit:
                count = f"the first {index + 1} of {len(lists)} lists have {tokens + list_tokens} words"
                raise LimitExceeded(f"{count}; {expected}", field=f"lists[{index}]")
            else:
                tokens += list_tokens
        limited.append(prepared)
    return tuple(limited), tokens


def limit_steps(
    lists: Sequence[PreparedList | InputError], options: BoundOptions, limit: int
) -> tuple[tuple[PreparedList | InputError, ...], int]:
    """Return the lists, with an error in place of each that takes too long to decide, and the steps of all.

    Raises:
        LimitExceeded: the lists take too long together, although none does alone.
    """
    total, limited = 0, list[PreparedList | InputError]()
    decision, costly = options.decision, list[str]()
    advice = "send fewer hypotheses"
    if decision.kind != "maximum":
        advice = f"use the rule maximum, or {advice}"
    expected = f"expected at most {limit} (max_decision_steps); {advice}"
    for index, prepared in enumerate(lists):
        steps = 0
        if isinstance(prepared, PreparedList):
            steps = estimate_steps(decision, prepared.compared)
            for component in prepared.components:
                if own_steps := component.steps_to_rank(prepared, options.weights):
                    steps, costly = steps + own_steps, [*costly, *component.columns]
        names = " and ".join(dict.fromkeys([decision.kind, *costly]))
        if steps > limit:
            prepared = LimitExceeded(f"{names} takes {steps} steps; {expected}", field="hypotheses")
        elif total + steps > limit:
            what = f"{names} of the first {index + 1} of {len(lists)} lists takes {total + steps} steps"
            raise LimitExceeded(f"{what}; {expected} per message", field=f"lists[{index}]")
        else:
            total += steps
        limited.append(prepared)
    return tuple(limited), total


def count_tokens(prepared: PreparedList) -> int:
    """Count the words of a list, the ends of its sentences and what is read before it."""
    return sum(map(len, prepared.words)) + len(prepared.words) + len(prepared.history)


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
        LimitExceeded: the bound is above the limit, although no list alone is. A list that is above the
            limit alone gets its own error, see ``check_list_response_size``.
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
    parts = AnswerParts(has_word_confidences(options.weights), options.decision.kind == "confusion_network")
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
        LimitExceeded: the bound is above the limit.
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
    nbest = outline.nbest
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
        # Each word is sent as it is and as it is written.
        normaliser = ranker.text_normaliser
        words_bytes = [utf8_bytes(text) * normaliser.max_growth(text) for text in texts]
        total += CONSENSUS_WORD_BYTES * (max(words_bytes, default=0) + 1) + 2 * sum(words_bytes)
    return max(total, LIST_STATUS_BYTES)


class AnswerParts(NamedTuple):
    """Parts of an answer that not all answers have, besides what components add."""

    confidences: bool
    """The words of the best hypothesis, with confidences."""
    consensus: bool
    """Words of any hypotheses."""


def has_word_confidences(weights: Weights) -> bool:
    return weights.calibration is not None and weights.calibration.word is not None


def requested_parts(request: RescoreRequest, bundle: Bundle) -> tuple[Weights | pb.Weights, AnswerParts]:
    """Return the weights of a request, which may be unknown or wrong yet, and the parts that it asks for."""
    weights: Weights | pb.Weights
    network = pb.DECISION_KIND_CONFUSION_NETWORK
    if request.WhichOneof("weighting") == "weights":
        weights = request.weights
        parts = AnswerParts(weights.calibration.HasField("word"), weights.decision.kind == network)
    else:
        weights = bundle.weights.get(request.weights_name or "default", Weights())
        parts = AnswerParts(has_word_confidences(weights), weights.decision.kind == "confusion_network")
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
    total = EMPTY_WEIGHTS_BYTES + names_bytes(names)
    if weights.calibration is not None:  # two numbers per point, and the temperature
        parts = [part for part in (weights.calibration.utterance, weights.calibration.word) if part]
        total += EMPTY_WEIGHTS_BYTES + sum(EMPTY_WEIGHTS_BYTES + 16 * len(part.posteriors) for part in parts)
    return total


def names_bytes(names: Iterable[str]) -> int:
    return sum(COMPONENT_BYTES + utf8_bytes(name) for name in names)

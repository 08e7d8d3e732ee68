"""Prepare the lists or texts of a request for scoring, and write the response from their scores.

These are plain functions, so that they can run in threads alongside the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from rescorer.bundle import Bundle
from rescorer.errors import ConfigError, InputError, Unavailable
from rescorer.options import RescoreOptions, Weighting
from rescorer.protocol.messages import (
    decision_from_proto,
    decision_to_proto,
    list_from_proto,
    phrases_from_proto,
    text_score_to_proto,
    weights_from_proto,
    weights_to_proto,
    write_ranking,
)
from rescorer.protocol.status import error_kind, status_from_error
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.ranking import Ranking
from rescorer.runtime.profiling import Phase, phase
from rescorer.scoring.batch import score_words
from rescorer.scoring.components import BoundOptions, PreparedList
from rescorer.scoring.ranker import ListRanker, only_name_message
from rescorer.service.engine.dispatch import ListOutcome
from rescorer.service.limits.requests import (
    RequestTooCostly,
    SearchBudget,
    check_list,
    check_list_response_size,
    limit_steps,
    limit_words,
)
from rescorer.service.observability.metrics import Metrics
from rescorer.service.settings import BYTES_PER_TOKEN, ServiceSettings
from rescorer.types import Hypothesis, NBestList, TextScore

RescoreRequest = pb.RescoreRequest | pb.RescoreStreamRequest
GENERATION_TOKENS = 32_768
"""Number of tokens whose normalising takes about as long as generating hypotheses for a list."""
STEPS_PER_TOKEN = 64
"""Steps of a decision rule that take about as long as normalising and writing one token."""
RescoreResponse = TypeVar("RescoreResponse", pb.RescoreResponse, pb.RescoreStreamResponse)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """The lists of a request, checked and in canonical words, and its weights."""

    ranker: ListRanker
    options: BoundOptions
    lists: tuple[PreparedList | InputError, ...]
    """Every list of the request, or the error of one that cannot be scored."""
    tokens: int
    """Number of tokens to score: words, ends of sentences, contexts, and what components have scored besides.
    In large requests, words that hypotheses share from their start count once."""
    decision_tokens: int = 0
    """Number of tokens whose normalising and writing takes about as long as deciding."""

    @property
    def response_tokens(self) -> int:
        """Number of tokens that cost as much as deciding and writing the response."""
        return self.tokens + self.decision_tokens

    @property
    def valid_lists(self) -> list[PreparedList]:
        return [prepared for prepared in self.lists if isinstance(prepared, PreparedList)]


def prepare_lists(ranker: ListRanker, request: RescoreRequest, settings: ServiceSettings) -> PreparedRequest:
    """Check and normalise the lists of a request.

    Raises:
        ConfigError: If the weights do not fit the bundle, it lacks phrases of a name, or the decision rule is
            invalid.
        LimitExceeded: If the lists have too many words, or take too long to search or to decide, together; if
            a phrase of the request is invalid.
    """
    options = ranker.bind(read_options(request, ranker.bundle))

    budget = SearchBudget(len(request.lists), settings.max_search_steps)

    def prepare(message: pb.NBestList) -> PreparedList | InputError:
        budget.begin_list()
        try:
            check_list(message, settings)
            check_list_response_size(message, request, ranker, options, settings.max_response_bytes)
            with phase(Phase.PARSE):
                nbest = list_from_proto(message)
            return ranker.prepare(nbest, options, budget.spend)
        except RequestTooCostly:
            raise
        except InputError as error:
            return error

    lists, tokens = limit_words(
        [prepare(message) for message in request.lists],
        settings.max_request_words,
        backward=bool(ranker.bundle.backward),
    )
    asked = sum(
        component.tokens(prepared)
        for prepared in lists
        if isinstance(prepared, PreparedList)
        for component in prepared.components
    )
    tokens = max(
        tokens, min(tokens + asked, settings.max_request_words)
    )  # one request must not fill a server
    lists, steps = limit_steps(lists, options, settings.max_decision_steps)
    decision_tokens = steps // STEPS_PER_TOKEN
    if (
        options.decision.kind == "confusion_network"
    ):  # reads the times of words, which may be most of a request
        decision_tokens += request.ByteSize() // BYTES_PER_TOKEN
    return PreparedRequest(ranker, options, lists, tokens, decision_tokens)


def prepare_texts(
    ranker: ListRanker, request: pb.ScoreTextRequest, settings: ServiceSettings
) -> PreparedRequest:
    """Normalise texts to score, and present them as one list without scores.

    Raises:
        ConfigError: If the weights do not fit the bundle.
        InvalidList: If a text is too long.
        LimitExceeded: If the texts have too many words together.
    """
    nbest = NBestList("", tuple(map(Hypothesis, request.texts)), context=request.context)
    options = ranker.bind(RescoreOptions(weights=read_weights(request, ranker.bundle)))
    prepared = [ranker.prepare_texts(nbest, options)] if request.texts else []
    backward = bool(ranker.bundle.backward)
    lists, tokens = limit_words(prepared, settings.max_request_words, "texts", backward=backward)
    for error in lists:
        if isinstance(error, InputError):
            raise error
    return PreparedRequest(ranker, options, lists, tokens)


def read_options(request: RescoreRequest, bundle: Bundle) -> RescoreOptions:
    """The options of a request.

    Raises:
        ConfigError: If a value of the weights or of the decision rule is unknown or out of range, or the
            weights are a name that stands in the wrong field.
    """
    return RescoreOptions(
        weights=read_weights(request, bundle),
        decision=decision_from_proto(request.decision) if request.HasField("decision") else None,
        merge=request.merge,
        drop_empty=request.drop_empty,
        generate=request.generate,
        phrases=tuple(phrases_from_proto(request.phrases)),
        phrase_lists=tuple(request.phrase_lists),
    )


def read_weights(request: RescoreRequest | pb.ScoreTextRequest, bundle: Bundle) -> Weighting:
    """The weights of a request, or their name; None for the default ones.

    Raises:
        ConfigError: If a value is out of range, or the weights are a name that stands in the wrong field.
    """
    weighting = request.WhichOneof("weighting")
    if weighting == "weights":
        _check_not_only_name(request, bundle)
        return weights_from_proto(request.weights)
    return request.weights_name if weighting else None


def _check_not_only_name(request: RescoreRequest | pb.ScoreTextRequest, bundle: Bundle) -> None:
    """Raise ConfigError for ``weights: {name: "x"}``, which would rank by language models alone, where the
    name is that of weights of the bundle, or scores of the recogniser would go unused."""
    name = request.weights.name
    if not name or request.weights.ByteSize() != pb.Weights(name=name).ByteSize():
        return
    lists = () if isinstance(request, pb.ScoreTextRequest) else request.lists
    if name in bundle.weights or any(message.streams for message in lists):
        raise ConfigError(only_name_message(name, bundle.weights))


def write_response(
    prepared_request: PreparedRequest,
    outcomes: Sequence[ListOutcome],
    request: RescoreRequest,
    response: RescoreResponse,
    request_id: str,
    metrics: Metrics,
) -> RescoreResponse:
    """Rank the lists, write them to ``response`` in input order, and count them.

    Args:
        outcomes: outcomes of the valid lists, in their order.

    Raises:
        Unavailable: If a list was not scored for a temporary reason.
        RescorerError: If no valid list could be scored.
    """
    raise_if_request_failed(outcomes)
    label = prepared_request.ranker.bundle.label
    remaining_outcomes = iter(outcomes)
    for index, (message, prepared) in enumerate(zip(request.lists, prepared_request.lists, strict=True)):
        if isinstance(prepared, PreparedList):
            outcome = next(remaining_outcomes)
            error = outcome.error
        else:
            error = prepared
        if isinstance(prepared, PreparedList) and error is None:
            try:
                with phase(Phase.RANK):
                    ranked = rank_list(prepared_request, prepared, outcome)
                with phase(Phase.WRITE):
                    write_ranking(ranked, response.lists.add(degradation=outcome.degradation))
                metrics.record_ranked_list(label, ranked, outcome.degradation)
            except InputError as ranking_error:
                error = ranking_error
        if error is not None:
            metrics.record_refused_list(label, error)
            hidden_id = request_id if error_kind(error).hidden else ""
            status = status_from_error(error, hidden_id, f"lists[{index}]")
            response.lists.add(id=message.id, status=status)
            if message.HasField("fields"):
                response.lists[index].fields.CopyFrom(message.fields)
    response.weights.CopyFrom(weights_to_proto(prepared_request.options.weights))
    response.decision.CopyFrom(decision_to_proto(prepared_request.options.decision))
    response.model = label
    return response


def raise_if_request_failed(outcomes: Sequence[ListOutcome]) -> None:
    """Raise a list's error for the whole request if it is temporary, or if all lists failed."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    temporary = [error for error in errors if isinstance(error, Unavailable)]
    if temporary or (errors and len(errors) == len(outcomes)):
        raise (temporary or errors)[0]


def rank_list(prepared_request: PreparedRequest, prepared: PreparedList, outcome: ListOutcome) -> Ranking:
    """Rank one list by its scores, or by the fallback with which it was answered.

    Raises:
        InvalidList: If a total is not finite.
    """
    ranker, options = prepared_request.ranker, prepared_request.options
    if outcome.degradation == pb.DEGRADATION_FIRST_PASS:
        options = ranker.first_pass(options)
    elif outcome.degradation == pb.DEGRADATION_NGRAM:
        options = ranker.ngram_only(options)
    return ranker.rank(prepared, [item.part for item in outcome.items], options)


def write_text_scores(
    prepared_request: PreparedRequest, outcomes: Sequence[ListOutcome]
) -> pb.ScoreTextResponse:
    """Return the response with the score of each text, in input order.

    Raises:
        RescorerError: If the texts could not be scored.
    """
    response = pb.ScoreTextResponse(
        weights=weights_to_proto(prepared_request.options.weights), model=prepared_request.ranker.bundle.label
    )  # fmt: skip
    for prepared, outcome in zip(prepared_request.valid_lists, outcomes, strict=True):
        if outcome.error is not None:
            raise outcome.error
        text_scores: dict[int, TextScore] = {}
        for item in outcome.items:
            text_scores |= score_words(item.part, prepared, prepared_request.ranker.bundle.ngram)
        response.scores.extend(text_score_to_proto(text_scores[i]) for i in range(len(text_scores)))
    return response

"""Prepare the lists or texts of a request for scoring, and write the response from their scores.

These are plain functions, so that they can run in threads alongside the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rescorer.errors import ConfigError, InputError, Unavailable, quote
from rescorer.list_ranker import ListRanker
from rescorer.preparation.list_checks import check_lengths
from rescorer.prepared_list import PreparedList, components_of, rank_prepared
from rescorer.protocol.messages import (
    list_from_proto,
    phrases_from_proto,
    text_score_to_proto,
    write_ranking,
)
from rescorer.protocol.status import error_kind, status_from_error
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.weights import (
    decision_from_proto,
    decision_to_proto,
    weights_from_proto,
    weights_to_proto,
)
from rescorer.ranking import Ranking
from rescorer.reranking.reranker import replace_by_base
from rescorer.runtime.profiling import Phase, phase
from rescorer.score_combination import totals
from rescorer.service.engine.dispatch import ListOutcome
from rescorer.service.engine.work_item import collect_sums
from rescorer.service.limits.request_size import check_list
from rescorer.service.limits.request_work import (
    RequestTooCostly,
    SearchBudget,
    count_reading_tokens,
    limit_decision_steps,
    limit_words,
)
from rescorer.service.limits.response_size import check_list_response_size
from rescorer.service.observability.metrics import Metrics
from rescorer.service.settings import BYTES_PER_TOKEN, ServiceSettings
from rescorer.trie import Words
from rescorer.types import MAXIMUM, DecisionRule, Hypothesis, NBestList, TextScore, Weights

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
    weights: Weights
    decision: DecisionRule
    lists: tuple[PreparedList | InputError, ...]
    """Every list of the request, or the error of one that cannot be scored."""
    tokens: int
    """Number of tokens to score: words, ends of sentences, contexts, and what is read with phrases in slots.
    In large requests, words that hypotheses share from their start count once."""
    decision_tokens: int = 0
    """Number of tokens whose normalising and writing takes about as long as deciding."""

    @property
    def response_tokens(self) -> int:
        """Number of tokens that cost as much as deciding and writing the response."""
        return self.tokens + self.decision_tokens

    @property
    def encode(self) -> tuple[str, ...]:
        """Names of the rerankers for which the words of the lists are encoded."""
        return tuple(self.ranker.used_encoders(self.weights))

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
    weights = select_weights(ranker, request)
    decision = select_decision(request, weights)
    phrases = ranker.phrases.select(phrases_from_proto(request.phrases), request.phrase_lists)

    budget = SearchBudget(len(request.lists), settings.max_search_steps)

    def prepare(message: pb.NBestList) -> PreparedList | InputError:
        budget.begin_list()
        try:
            check_list(message, settings)
            check_list_response_size(
                message,
                ranker.bundle,
                weights,
                decision,
                settings.max_response_bytes,
                generate=request.generate,
                has_phrases=bool(phrases),
            )
            with phase(Phase.PARSE):
                nbest = list_from_proto(message)
            return ranker.prepare(nbest, weights, phrases, generate=request.generate, spend=budget.spend)
        except RequestTooCostly:
            raise
        except InputError as error:
            return error

    lists, tokens = limit_words(
        [prepare(message) for message in request.lists],
        settings.max_request_words,
        backward=bool(ranker.bundle.backward),
    )
    tokens += sum(count_reading_tokens(one) for one in lists if isinstance(one, PreparedList))
    lists, steps = limit_decision_steps(
        lists, decision, ranker.used_rerankers(weights), settings.max_decision_steps
    )
    decision_tokens = steps // STEPS_PER_TOKEN
    if decision.kind == "confusion_network":  # reads the times of words, which may be most of a request
        decision_tokens += request.ByteSize() // BYTES_PER_TOKEN
    return PreparedRequest(ranker, weights, decision, lists, tokens, decision_tokens)


def prepare_texts(
    ranker: ListRanker, request: pb.ScoreTextRequest, settings: ServiceSettings
) -> PreparedRequest:
    """Normalise texts to score, and present them as one list without scores.

    Raises:
        ConfigError: If the weights do not fit the bundle.
        InvalidList: If a text is too long.
        LimitExceeded: If the texts have too many words together.
    """
    words = ranker.normalise_texts(request.texts)
    context: Words = ranker.bundle.normaliser.normalise(request.context)
    check_lengths("", words, context)
    nbest = NBestList("", tuple(Hypothesis(text) for text in request.texts))
    prepared = [PreparedList(nbest, words, context, context, context)] if words else []
    backward = bool(ranker.bundle.backward)
    lists, tokens = limit_words(prepared, settings.max_request_words, "texts", backward=backward)
    for error in lists:
        if isinstance(error, InputError):
            raise error
    return PreparedRequest(ranker, select_weights(ranker, request), MAXIMUM, lists, tokens)


def select_weights(ranker: ListRanker, request: RescoreRequest | pb.ScoreTextRequest) -> Weights:
    """Return the complete weights that a request asks for.

    Raises:
        ConfigError: If the bundle does not have weights of that name, or the weights do not fit the bundle.
    """
    weighting = request.WhichOneof("weighting")
    if weighting == "weights":
        return ranker.effective_weights(weights_from_proto(request.weights))
    name = request.weights_name if weighting else "default"
    if name not in ranker.bundle.weights:
        known = ", ".join(sorted(ranker.bundle.weights))
        raise ConfigError(f"weights_name is {quote(name)}; the bundle has: {known}")
    return ranker.effective_weights(ranker.bundle.weights[name])


def select_decision(request: RescoreRequest, weights: Weights) -> DecisionRule:
    """Return the rule that a request asks for, or that of the weights.

    Raises:
        ConfigError: If a value of the rule is unknown or out of range.
    """
    return decision_from_proto(request.decision) if request.HasField("decision") else weights.decision


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
                    ranked = rank_list(prepared_request, prepared, outcome, request)
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
    response.weights.CopyFrom(weights_to_proto(prepared_request.weights))
    response.decision.CopyFrom(decision_to_proto(prepared_request.decision))
    response.model = label
    return response


def raise_if_request_failed(outcomes: Sequence[ListOutcome]) -> None:
    """Raise a list's error for the whole request if it is temporary, or if all lists failed."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    temporary = [error for error in errors if isinstance(error, Unavailable)]
    if temporary or (errors and len(errors) == len(outcomes)):
        raise (temporary or errors)[0]


def rank_list(
    prepared_request: PreparedRequest,
    prepared: PreparedList,
    outcome: ListOutcome,
    request: RescoreRequest,
) -> Ranking:
    """Rank one list by its scores, or by the fallback with which it was answered.

    Raises:
        InvalidList: If a total is not finite.
    """
    if outcome.degradation == pb.DEGRADATION_FIRST_PASS:
        return rank_first_pass(prepared, prepared_request, request)
    weights = prepared_request.weights
    if outcome.degradation == pb.DEGRADATION_NGRAM:
        weights = ngram_weights(prepared_request.ranker, weights)
    sums = collect_sums(prepared, outcome.parts, weights)
    return prepared_request.ranker.rank(
        prepared,
        sums,
        weights,
        merge=request.merge,
        drop_empty=request.drop_empty,
        decision=prepared_request.decision,
    )


def write_text_scores(
    prepared_request: PreparedRequest, outcomes: Sequence[ListOutcome]
) -> pb.ScoreTextResponse:
    """Return the response with the score of each text, in input order.

    Raises:
        RescorerError: If the texts could not be scored.
    """
    response = pb.ScoreTextResponse(
        weights=weights_to_proto(prepared_request.weights), model=prepared_request.ranker.bundle.label
    )  # fmt: skip
    for prepared, outcome in zip(prepared_request.valid_lists, outcomes, strict=True):
        if outcome.error is not None:
            raise outcome.error
        text_scores: dict[int, TextScore] = {}
        for part in outcome.parts:
            texts = [prepared.nbest.hypotheses[i].text for i in part.indices]
            words = [prepared.words[i] for i in part.indices]
            trie, scores, first = part.batch.trie, part.batch.scores, part.rows.start
            part_scores = prepared_request.ranker.text_scores(
                texts, words, trie, scores, prepared_request.weights, first
            )
            text_scores.update(zip(part.indices, part_scores, strict=True))
        response.scores.extend(text_score_to_proto(text_scores[i]) for i in range(len(text_scores)))
    return response


def ngram_weights(ranker: ListRanker, weights: Weights) -> Weights:
    """Return weights that give the n-gram model the weight of all language models together.

    Rerankers that were trained with other models cannot run; their base weights stand in for them. The
    weights are not calibrated.
    """
    ngram = ranker.bundle.ngram
    unable = [reranker for reranker in ranker.used_rerankers(weights) if set(reranker.models) - {ngram}]
    weights = replace_by_base(weights, unable)
    lm = {ngram: sum(weights.lm.values())}
    return replace(weights, lm=lm, mixture={ngram: 1.0}, calibration=None)


def rank_first_pass(
    prepared: PreparedList, prepared_request: PreparedRequest, request: RescoreRequest
) -> Ranking:
    """Keep the order of a list, with totals from its streams and number of words only.

    The base weights of rerankers stand in for these.

    Raises:
        InvalidList: If a total is not finite.
    """
    weights, ranker = prepared_request.weights, prepared_request.ranker
    weights = replace_by_base(weights, ranker.used_rerankers(weights))
    components = components_of(prepared, {})
    total = totals(components, replace(weights, lm={}, oov=0.0))
    return rank_prepared(
        prepared,
        components,
        total,
        merge=request.merge,
        drop_empty=request.drop_empty,
        keep_order=True,
    )

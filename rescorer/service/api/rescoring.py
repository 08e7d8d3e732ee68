"""Methods of ``RescorerService``: admit a request, prepare it, have it scored, and write the response."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar

import grpc
import structlog

from rescorer.errors import ConfigError, InputError, Overloaded, Unavailable
from rescorer.list_checks import MAX_PREVIOUS_WORDS
from rescorer.models.bundle import Bundle
from rescorer.protocol import messages
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceServicer
from rescorer.ranking import Ranking
from rescorer.runtime import Phase, pause, phase
from rescorer.scoring.batch import score_words
from rescorer.scoring.components import BoundOptions, PreparedList
from rescorer.scoring.options import RescoreOptions, Weighting
from rescorer.scoring.ranker import ListRanker, only_name_message
from rescorer.service.api.calls import Drain, client_of, current_call
from rescorer.service.engine.admission import NotReady, ResponseTime
from rescorer.service.engine.census import VALUE_BYTES
from rescorer.service.engine.client_limits import StreamSlots, current_memory
from rescorer.service.engine.engine import CallContext, ListOutcome, ScoringEngine
from rescorer.service.engine.request_bounds import (
    USUAL_WORDS,
    Lists,
    RescoreRequest,
    check_list,
    check_list_response_size,
    check_request,
    check_response_size,
    check_text_response_size,
    check_texts,
    depth_tokens,
    limit_steps,
    limit_units,
    limit_words,
    search_budget,
)
from rescorer.service.listener import on_call_done
from rescorer.service.metrics import Metrics
from rescorer.service.repository import ModelRepository
from rescorer.service.settings import BYTES_PER_TOKEN, ServiceSettings
from rescorer.service.tracing import PhaseTiming, current_request, sum_by_phase
from rescorer.types import Hypothesis, NBestList, TextScore
from rescorer.unread_scores import MIN_LISTS, find_untuned_weights

log = structlog.get_logger()

STEPS_PER_TOKEN = 64
"""Number of steps of a search or a decision rule that take as long as normalising and writing one token."""
RESPONSE_BYTES_PER_TOKEN = 32
"""Estimated bytes of a response that take as long to make as normalising and writing one token."""
TOKENS_PER_PLACE = 32
"""Sums over hypotheses are computed word by word. In a list whose longest hypothesis has more than the usual
number of words, each further word takes as long as this many tokens."""
RescoredResponse = pb.RescoreResponse | pb.RescoreStreamResponse
RescoreResponse = TypeVar("RescoreResponse", pb.RescoreResponse, pb.RescoreStreamResponse)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """The lists of a request, checked and in canonical words, and the options of the request."""

    ranker: ListRanker
    options: BoundOptions
    lists: Lists
    tokens: int
    """Number of tokens to score: words, ends of sentences, contexts, and texts that components have scored.
    In large requests, words that hypotheses share from their start count once."""
    decision_tokens: int = 0
    """Cost of deciding, in tokens: to normalise and write this many takes as long."""

    def response_tokens(self, response_bytes: int) -> int:
        """Return the cost of deciding and writing a response of this estimated size, in tokens."""
        return self.tokens + self.decision_tokens + response_bytes // RESPONSE_BYTES_PER_TOKEN

    @property
    def valid_lists(self) -> list[PreparedList]:
        return [prepared for prepared in self.lists if isinstance(prepared, PreparedList)]


def prepare_lists(
    ranker: ListRanker,
    request: RescoreRequest,
    settings: ServiceSettings,
    lists_of_request: Sequence[pb.NBestList] | None = None,
) -> PreparedRequest:
    """Check and normalise the lists of a request.

    Args:
        lists_of_request: the lists to prepare; None: all of them.

    Raises:
        ConfigError: the weights do not fit the bundle, the bundle lacks a phrase list that the request
            names, or the decision rule is invalid.
        LimitExceeded: all lists together have too many words, or take too long to search or to decide; or a
            phrase of the request is invalid.
    """
    options = ranker.bind(read_options(request, ranker.bundle))
    messages_of_lists = request.lists if lists_of_request is None else lists_of_request
    budget = search_budget(len(messages_of_lists), settings.max_search_steps)

    def read(message: pb.NBestList) -> NBestList | InputError:
        pause()
        try:
            check_list(message, settings)
            check_list_response_size(message, request, ranker, options, settings.max_response_bytes)
            with phase(Phase.PARSE):
                return messages.list_from_proto(message)
        except InputError as error:
            return error

    def prepare(nbest: NBestList | InputError) -> PreparedList | InputError:
        if isinstance(nbest, InputError):
            return nbest
        return ranker.prepare(nbest, options, budget.spend, settings.max_words, next(words))

    received = [*map(read, messages_of_lists)]
    readable = [nbest for nbest in received if isinstance(nbest, NBestList)]
    words = iter(ranker.normalise_lists(readable, settings.max_words))
    lists, tokens = limit_words(
        budget.each(received, prepare),
        settings.max_request_words,
        backward=bool(ranker.bundle.backward),
    )
    asked = sum(
        component.tokens(prepared)
        for prepared in lists
        if isinstance(prepared, PreparedList)
        for component in prepared.components
    )
    lists, n_units = limit_units(lists, settings.max_request_words)
    asked += depth_tokens(ranker.bundle, lists, tokens, settings.max_batch_tokens)
    # One request must not fill a server.
    tokens = max(tokens, min(tokens + asked + n_units, settings.max_request_words))
    lists, steps = limit_steps(lists, options, settings.max_decision_steps)
    decision_tokens = steps // STEPS_PER_TOKEN
    longest = (int(one.word_counts.max(initial=0)) for one in lists if isinstance(one, PreparedList))
    decision_tokens += TOKENS_PER_PLACE * sum(max(0, n_words - USUAL_WORDS) for n_words in longest)
    if options.decision.kind == "confusion_network":
        # This rule reads the times of words, which may be most of a request.
        decision_tokens += request.ByteSize() // BYTES_PER_TOKEN
    return PreparedRequest(ranker, options, lists, tokens, decision_tokens)


def prepare_texts(
    ranker: ListRanker, request: pb.ScoreTextRequest, settings: ServiceSettings
) -> PreparedRequest:
    """Normalise texts to score, and present them as one list without scores.

    Raises:
        ConfigError: the weights do not fit the bundle.
        InvalidList: a text is too long.
        LimitExceeded: the texts have too many words together.
    """
    nbest = NBestList("", tuple(map(Hypothesis, request.texts)), context=request.context)
    options = ranker.bind(RescoreOptions(weights=read_weights(request, ranker.bundle)))
    prepared = [ranker.prepare_texts(nbest, options, settings.max_words)] if request.texts else []
    backward = bool(ranker.bundle.backward)
    lists, tokens = limit_words(prepared, settings.max_request_words, "texts", backward=backward)
    lists, n_units = limit_units(lists, settings.max_request_words, "texts")
    n_units += depth_tokens(ranker.bundle, lists, tokens, settings.max_batch_tokens)
    tokens = max(tokens, min(tokens + n_units, settings.max_request_words))
    for error in lists:
        if isinstance(error, InputError):
            raise error
    return PreparedRequest(ranker, options, lists, tokens)


def read_options(request: RescoreRequest, bundle: Bundle) -> RescoreOptions:
    """Return the options of a request.

    Raises:
        ConfigError: a value of the weights or of the decision rule is unknown or out of range, or the
            weights have only a name, which should have been in ``weights_name``.
    """
    return RescoreOptions(
        weights=read_weights(request, bundle),
        decision=messages.decision_from_proto(request.decision) if request.HasField("decision") else None,
        merge=request.merge,
        drop_empty=request.drop_empty,
        generate=request.generate,
        phrases=tuple(messages.phrases_from_proto(request.phrases)),
        phrase_lists=tuple(request.phrase_lists),
    )


def read_weights(request: RescoreRequest | pb.ScoreTextRequest, bundle: Bundle) -> Weighting:
    """Return the weights of a request, or their name; None: the default weights.

    Raises:
        ConfigError: a value is out of range, or the weights have only a name, which should have been in
            ``weights_name``.
    """
    weighting = request.WhichOneof("weighting")
    if weighting != "weights":
        return request.weights_name if weighting else None
    name = request.weights.name
    if name and request.weights.ByteSize() == pb.Weights(name=name).ByteSize():
        # Weights with nothing but a name would rank by language models alone. Refuse them if the bundle has
        # weights of this name, or if scores of the recogniser would go unused.
        lists = () if isinstance(request, pb.ScoreTextRequest) else request.lists
        if name in bundle.weights or any(message.streams for message in lists):
            raise ConfigError(only_name_message(name, bundle.weights))
    return messages.weights_from_proto(request.weights)


def write_response(
    prepared_request: PreparedRequest,
    outcomes: Sequence[ListOutcome],
    request: RescoreRequest,
    response: RescoreResponse,
    request_id: str,
    metrics: Metrics,
) -> RescoreResponse:
    """Rank the lists, write them to ``response`` in input order, and count them in the metrics.

    Args:
        outcomes: outcomes of the valid lists, in their order.

    Raises:
        Unavailable: a list was not scored for a temporary reason.
        RescorerError: no valid list could be scored.
    """
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    temporary = [error for error in errors if isinstance(error, Unavailable)]
    if temporary or (errors and len(errors) == len(outcomes)):
        raise (temporary or errors)[0]
    label = prepared_request.ranker.bundle.label
    remaining_outcomes = iter(outcomes)
    for index, (message, prepared) in enumerate(zip(request.lists, prepared_request.lists, strict=True)):
        error: Exception | None
        pause()
        if not isinstance(prepared, PreparedList):
            error = prepared
        elif (error := (outcome := next(remaining_outcomes)).error) is None:
            try:
                with phase(Phase.RANK):
                    ranked = rank_list(prepared_request, prepared, outcome)
                with phase(Phase.WRITE):
                    answer = response.lists.add(degradation=outcome.degradation)
                    messages.write_ranking(ranked, answer)
                metrics.record_ranked_list(label, ranked, answer.degradation)
            except InputError as ranking_error:
                error = ranking_error
        if error is not None:
            metrics.record_refused_list(label, error)
            hidden_id = request_id if messages.error_kind(error).hidden else ""
            status = messages.status_from_error(error, hidden_id, f"lists[{index}]")
            response.lists.add(id=message.id, status=status)
            if message.HasField("fields"):
                response.lists[index].fields.CopyFrom(message.fields)
    response.weights.CopyFrom(messages.weights_to_proto(prepared_request.options.weights))
    response.decision.CopyFrom(messages.decision_to_proto(prepared_request.options.decision))
    response.model = label
    return response


def rank_list(prepared_request: PreparedRequest, prepared: PreparedList, outcome: ListOutcome) -> Ranking:
    """Rank one list by its scores, or by the fallback with which it was answered.

    Raises:
        InvalidList: a total is not finite.
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
        RescorerError: the texts could not be scored.
    """
    weights = messages.weights_to_proto(prepared_request.options.weights)
    response = pb.ScoreTextResponse(weights=weights, model=prepared_request.ranker.bundle.label)
    for prepared, outcome in zip(prepared_request.valid_lists, outcomes, strict=True):
        if outcome.error is not None:
            raise outcome.error
        text_scores: dict[int, TextScore] = {}
        for item in outcome.items:
            text_scores |= score_words(item.part, prepared, prepared_request.ranker.bundle)
        response.scores.extend(messages.text_score_to_proto(text_scores[i]) for i in range(len(text_scores)))
    return response


ADVICE = "weigh the scores alone, lm: {mixture: 0}, and find the weight of language models with rescorer tune"


class UntunedWeightsLog:
    """Warns in the log if weights of a bundle were never tuned for scores like those that clients send.

    For each model and set of weights, the first lists are judged, and there is at most one warning. It is
    meant for the operator, who chooses the bundles. Weights that a client sends are not judged.
    """

    def __init__(self) -> None:
        self._lists: dict[tuple[str, str], list[NBestList] | None] = {}
        """The first lists by model and weights; None after they were judged."""

    def add(self, request: RescoreRequest, prepared: PreparedRequest) -> None:
        """Keep the lists of a request until there are enough to judge; then judge, and warn if necessary."""
        if request.WhichOneof("weighting") == "weights":
            return
        model, weights = prepared.ranker.bundle.label, prepared.options.weights
        lists = self._lists.setdefault((model, weights.name), [])
        if lists is None:
            return
        lists += [one.nbest for one in prepared.valid_lists[: MIN_LISTS - len(lists)]]
        if len(lists) < MIN_LISTS:
            return
        self._lists[model, weights.name] = None
        if found := find_untuned_weights(lists, weights):
            log.warning(
                "weights were never tuned for such scores",
                model=model,
                weights=found.name,
                streams=list(found.streams),
                nats_per_word=round(found.nats_per_word, 3),
                reason=found.describe(),
                advice=ADVICE,
            )


class RescorerService(RescorerServiceServicer):
    """Rescore lists and score texts. Methods raise errors, which ``CallInterceptor`` turns into statuses.

    Args:
        on_answered: called with each answered request, its response and its id; None: nothing is called.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        models: ModelRepository,
        engine: ScoringEngine,
        drain: Drain,
        metrics: Metrics,
        on_answered: Callable[[RescoreRequest, RescoredResponse, str], None] | None = None,
    ) -> None:
        self._settings, self._models, self._engine = settings, models, engine
        self._drain, self._metrics, self._on_answered = drain, metrics, on_answered
        self._response_time, self._untuned = ResponseTime(), UntunedWeightsLog()
        self.streams = StreamSlots("streams", settings.max_streams, settings.max_client_streams)

    async def Rescore(  # noqa: N802 (the name in the proto)
        self, request: pb.RescoreRequest, context: grpc.aio.ServicerContext
    ) -> pb.RescoreResponse:
        response = await self._rescore(request, pb.RescoreResponse(), context, wait=False)
        if (on_answered := self._on_answered) is not None:
            request_id = current_request.get()
            on_call_done(lambda _: on_answered(request, response, request_id))
        return response

    async def RescoreStream(  # noqa: N802
        self, requests: AsyncIterator[pb.RescoreStreamRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.RescoreStreamResponse]:
        max_idle_s = self._settings.max_idle_s
        with self.streams.hold(client_of(context)) as slot:
            async with aclosing(self._drain.read_messages(requests, slot, max_idle_s)) as received:
                async for request in received:
                    response = await self._rescore(request, pb.RescoreStreamResponse(), context, wait=True)
                    yield response
                    if self._on_answered is not None:
                        self._on_answered(request, response, current_request.get())

    async def ScoreText(  # noqa: N802
        self, request: pb.ScoreTextRequest, context: grpc.aio.ServicerContext
    ) -> pb.ScoreTextResponse:
        check_texts(request, self._settings)
        if self._settings.log_texts:
            log.info("texts", texts=list(request.texts))
        call = self._call_context(context)
        n_tokens, admission = text_cost(request.texts), self._engine.admission
        with self._models.lease(request.model) as ranker:
            async with admission.admit(call.client, 1, n_tokens, remaining_s=call.remaining_s) as ticket:
                prepared_request = await self._run(
                    lambda: prepare_texts(ranker, request, self._settings),
                    current_call.get().reading_tokens,
                    call.client,
                )
                response_bytes = check_text_response_size(
                    request, prepared_request.valid_lists, ranker.bundle, self._settings.max_response_bytes
                )
                current_memory.get().shrink(current_call.get().held_bytes + response_bytes)
                admission.begin_scoring(ticket, prepared_request.tokens)
                outcomes = await self._score(prepared_request, call)
                response = await self._run(
                    lambda: write_text_scores(prepared_request, outcomes),
                    prepared_request.tokens,
                    call.client,
                )
        response.timing.CopyFrom(make_timing(outcomes, call.arrived_at, current_call.get().timings))
        return response

    async def _rescore(
        self,
        request: RescoreRequest,
        response: RescoreResponse,
        context: grpc.aio.ServicerContext,
        *,
        wait: bool,
    ) -> RescoreResponse:
        """Admit a request and fill its response. If it is refused, use the fallback that the client permits.

        Args:
            wait: wait for admission instead of refusing the request.
        """
        call = replace(self._call_context(context), fallback=request.fallback)
        if not wait and not call.fallback:
            self._check_room(call.client, len(request.lists))
        n_values = check_request(request, self._settings)
        if self._settings.log_texts:
            texts = [[hypothesis.text for hypothesis in nbest.hypotheses] for nbest in request.lists]
            log.info("texts", lists=texts)
        with self._models.lease(request.model) as ranker:
            request_bytes = current_call.get().request_bytes
            response_bytes = check_response_size(
                request, request_bytes, ranker, self._settings.max_response_bytes
            )
            response_bytes += VALUE_BYTES * n_values
            current_memory.get().shrink(current_call.get().held_bytes + response_bytes)
            try:
                return await self._answer(ranker, request, response, call, response_bytes, wait=wait)
            except (Overloaded, NotReady):
                self._metrics.rejected_lists.inc(len(request.lists))
                if not call.fallback:
                    raise
            return await self._answer(ranker, request, response, call, response_bytes, late=True)

    def _check_room(self, client: Hashable, n_lists: int) -> None:
        """Refuse lists for which there is no room before their sizes are added up, which takes far longer.

        Raises:
            Overloaded: there is no room. Too many lists for any call get another error later.
        """
        if n_lists > self._settings.max_lists:
            return
        try:
            self._engine.admission.check_room(client, n_lists)
        except Overloaded:
            self._metrics.rejected_lists.inc(n_lists)
            raise

    async def _answer(
        self,
        ranker: ListRanker,
        request: RescoreRequest,
        response: RescoreResponse,
        call: CallContext,
        response_bytes: int,
        *,
        wait: bool = False,
        late: bool = False,
    ) -> RescoreResponse:
        """Admit a request and fill its response.

        Args:
            response_bytes: estimated size of the response.
            late: use only the permitted fallback, which has a separate quota.
        """
        admission = self._engine.late_admission if late else self._engine.admission
        remaining_s = math.inf if late else call.remaining_s
        n_tokens = text_cost(texts_of(request.lists)) + estimate_previous(ranker, request)
        n_tokens = min(n_tokens, self._settings.max_request_words)
        async with admission.admit(
            call.client, len(request.lists), n_tokens, remaining_s=remaining_s, wait=wait
        ) as ticket:
            prepared_request = await self._run(
                lambda: prepare_lists(ranker, request, self._settings),
                current_call.get().reading_tokens + search_cost(ranker, request),
                call.client,
            )
            admission.begin_scoring(ticket, prepared_request.tokens)
            self._untuned.add(request, prepared_request)
            response_tokens = prepared_request.response_tokens(response_bytes)
            response_s = self._response_time.seconds_for(response_tokens)
            outcomes = await self._score(prepared_request, replace(call, response_s=response_s), late=late)
            started_at = time.perf_counter()
            response = await self._run(
                lambda: write_response(
                    prepared_request, outcomes, request, response, call.request_id, self._metrics
                ),
                response_tokens,
                call.client,
            )
            self._response_time.record(response_tokens, time.perf_counter() - started_at)
            telemetry = current_call.get()
            telemetry.failed_lists += sum(answer.status.code != 0 for answer in response.lists)
            response.timing.CopyFrom(make_timing(outcomes, call.arrived_at, telemetry.timings))
            return response

    async def _score(
        self, prepared_request: PreparedRequest, call: CallContext, *, late: bool = False
    ) -> list[ListOutcome]:
        telemetry = current_call.get()
        telemetry.model = prepared_request.ranker.bundle.label
        telemetry.lists += len(prepared_request.lists)
        outcomes = await self._engine.dispatcher.score_lists(
            prepared_request.ranker, prepared_request.valid_lists, call, late=late
        )
        telemetry.record_scores([item for outcome in outcomes for item in outcome.items])
        return outcomes

    async def _run(self, job: Callable[[], Result], tokens: int, client: Hashable) -> Result:
        result, timings = await self._engine.offloader.run(job, tokens, client)
        current_call.get().record_timings(timings)
        return result

    def _call_context(self, context: grpc.aio.ServicerContext) -> CallContext:
        remaining_s = context.time_remaining()
        max_wait_s = self._settings.max_wait_s
        allowed_s = max_wait_s if remaining_s is None else min(remaining_s, max_wait_s)
        return CallContext(
            client_of(context), current_request.get(), time.perf_counter(), time.monotonic() + allowed_s
        )


def search_cost(ranker: ListRanker, request: RescoreRequest) -> int:
    """Return an upper bound of the cost of all searches of components in a request's lists, in tokens.

    It is known before anything is normalised.
    """
    return sum(component.steps_by_size(request) for component in ranker.components) // STEPS_PER_TOKEN


def text_cost(texts: Iterable[str]) -> int:
    """Estimate the cost of scoring texts and contexts in tokens, before ``count_tokens`` can count them.

    Texts in scripts without spaces are read in pieces, so they are estimated by their length.
    """
    return sum(max(text.count(" ") + 2, len(text) // BYTES_PER_TOKEN) for text in texts)


def estimate_previous(ranker: ListRanker, request: RescoreRequest) -> int:
    """Estimate the number of tokens of previous utterances, if models of the bundle read them."""
    if not ranker.bundle.reads_previous:
        return 0
    said = (text_cost(one.text for one in nbest.previous) for nbest in request.lists)
    return sum(min(n_tokens, MAX_PREVIOUS_WORDS) for n_tokens in said)


def texts_of(lists: Iterable[pb.NBestList]) -> Iterator[str]:
    for nbest in lists:
        yield nbest.context
        yield from (hypothesis.text for hypothesis in nbest.hypotheses)


def make_timing(outcomes: list[ListOutcome], arrived_at: float, timings: list[PhaseTiming]) -> pb.Timing:
    """Return the time until the first batch began, the time of all batches, and that of each phase so far.

    Args:
        arrived_at: arrival of the request, in ``time.perf_counter`` seconds.
    """
    items = [item for outcome in outcomes for item in outcome.items]
    batches = {id(item.scored): item.scored for item in items}.values()
    began_at = min((item.queue.began + item.queue.seconds for item in items), default=arrived_at)
    compute_s = sum(timing.seconds for scored in batches for timing in scored.timings)
    phase_ms = {phase: seconds * 1e3 for phase, seconds in sum_by_phase(timings).items()}
    return pb.Timing(queue_ms=(began_at - arrived_at) * 1e3, compute_ms=compute_s * 1e3, phase_ms=phase_ms)

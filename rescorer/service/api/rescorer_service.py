"""Methods of ``RescorerService``: admit a request, prepare it, have it scored, and write the response."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

import grpc
import structlog

from rescorer.errors import Overloaded
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceServicer
from rescorer.scoring.ranker import ListRanker
from rescorer.service.api.call_telemetry import current_call
from rescorer.service.api.caller import client_of
from rescorer.service.api.drain import Drain
from rescorer.service.api.planning import (
    GENERATION_TOKENS,
    PreparedRequest,
    RescoreRequest,
    RescoreResponse,
    prepare_lists,
    prepare_texts,
    write_response,
    write_text_scores,
)
from rescorer.service.api.shadow import Shadow
from rescorer.service.api.untuned import UntunedWeightsLog
from rescorer.service.engine.dispatch import CallContext, ListOutcome
from rescorer.service.engine.response_time import ResponseTime
from rescorer.service.engine.scoring_engine import ScoringEngine
from rescorer.service.limits.call_memory import current_memory
from rescorer.service.limits.requests import (
    check_request,
    check_response_size,
    check_text_response_size,
    check_texts,
)
from rescorer.service.limits.stream_slots import StreamSlots
from rescorer.service.models.repository import ModelRepository
from rescorer.service.net.grpc_listener import on_call_done
from rescorer.service.observability.metrics import Metrics
from rescorer.service.observability.request_id import current_request
from rescorer.service.observability.timings import PhaseTiming, sum_by_phase
from rescorer.service.settings import BYTES_PER_TOKEN, ServiceSettings

Result = TypeVar("Result")

log = structlog.get_logger()


class RescorerService(RescorerServiceServicer):
    """Errors are raised as they are; the interceptor turns them into statuses.

    Args:
        shadow: receives the answered lists; None: there is no shadow.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        models: ModelRepository,
        engine: ScoringEngine,
        drain: Drain,
        metrics: Metrics,
        shadow: Shadow | None = None,
    ) -> None:
        self._settings = settings
        self._models = models
        self._engine = engine
        self._drain = drain
        self._metrics = metrics
        self._shadow = shadow
        self._response_time = ResponseTime()
        self._untuned = UntunedWeightsLog()
        self.streams = StreamSlots(
            "streams",
            settings.max_streams,
            settings.max_client_streams,
            ("max_streams", "max_client_streams"),
        )

    async def Rescore(  # noqa: N802 (the name in the proto)
        self, request: pb.RescoreRequest, context: grpc.aio.ServicerContext
    ) -> pb.RescoreResponse:
        response = await self._rescore(request, pb.RescoreResponse(), context, wait=False)
        if (shadow := self._shadow) is not None:
            request_id = current_request.get()
            on_call_done(lambda _: shadow.offer(request, response, request_id))
        return response

    async def RescoreStream(  # noqa: N802
        self, requests: AsyncIterator[pb.RescoreStreamRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.RescoreStreamResponse]:
        max_idle_s = self._settings.max_idle_s
        with self.streams.hold(client_of(context)) as slot:
            async with aclosing(self._drain.read_messages(requests, slot, max_idle_s)) as messages:
                async for request in messages:
                    response = await self._rescore(request, pb.RescoreStreamResponse(), context, wait=True)
                    yield response
                    if self._shadow is not None:
                        self._shadow.offer(request, response, current_request.get())

    async def ScoreText(  # noqa: N802
        self, request: pb.ScoreTextRequest, context: grpc.aio.ServicerContext
    ) -> pb.ScoreTextResponse:
        check_texts(request, self._settings)
        if self._settings.log_texts:
            log.info("texts", texts=list(request.texts))
        call = self._call_context(context)
        n_tokens, admission = estimate_tokens(), self._engine.admission
        with self._models.lease(request.model) as ranker:
            async with admission.admit(call.client, 1, n_tokens, remaining_s=call.remaining_s) as ticket:
                prepared_request = await self._run(
                    lambda: prepare_texts(ranker, request, self._settings), n_tokens, call.client
                )
                response_bytes = check_text_response_size(
                    request, prepared_request.valid_lists, ranker.bundle, self._settings.max_response_bytes
                )
                current_memory.get().shrink(current_call.get().request_bytes + response_bytes)
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
        """Admit a request and fill its response; if it is refused, use the fallback that it permits.

        Args:
            wait: wait for admission instead of refusing the request.
        """
        check_request(request, self._settings)
        if self._settings.log_texts:
            texts = [[hypothesis.text for hypothesis in nbest.hypotheses] for nbest in request.lists]
            log.info("texts", lists=texts)
        call = replace(self._call_context(context), fallback=request.fallback)
        with self._models.lease(request.model) as ranker:
            request_bytes = current_call.get().request_bytes
            response_bytes = check_response_size(
                request, request_bytes, ranker, self._settings.max_response_bytes
            )
            current_memory.get().shrink(request_bytes + response_bytes)
            try:
                return await self._answer(ranker, request, response, call, wait=wait)
            except Overloaded:
                self._metrics.rejected_lists.inc(len(request.lists))
                if not call.fallback:
                    raise
            return await self._answer(ranker, request, response, call, late=True)

    async def _answer(
        self,
        ranker: ListRanker,
        request: RescoreRequest,
        response: RescoreResponse,
        call: CallContext,
        *,
        wait: bool = False,
        late: bool = False,
    ) -> RescoreResponse:
        """Admit a request and fill its response.

        Args:
            wait: wait for admission instead of refusing the request.
            late: use only the permitted fallback, for which there is a quota of its own.
        """
        admission = self._engine.late_admission if late else self._engine.admission
        remaining_s = math.inf if late else call.remaining_s
        n_tokens = estimate_tokens()
        async with admission.admit(
            call.client, len(request.lists), n_tokens, remaining_s=remaining_s, wait=wait
        ) as ticket:
            prepared_request = await self._run(
                lambda: prepare_lists(ranker, request, self._settings),
                n_tokens + GENERATION_TOKENS * len(request.lists) * request.generate,
                call.client,
            )
            admission.begin_scoring(ticket, prepared_request.tokens)
            self._untuned.add(request, prepared_request)
            response_s = self._response_time.seconds_for(prepared_request.response_tokens)
            outcomes = await self._score(prepared_request, replace(call, response_s=response_s), late=late)
            return await self._respond(prepared_request, outcomes, request, response, call)

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

    async def _respond(
        self,
        prepared_request: PreparedRequest,
        outcomes: list[ListOutcome],
        request: RescoreRequest,
        response: RescoreResponse,
        call: CallContext,
    ) -> RescoreResponse:
        started_at, tokens = time.perf_counter(), prepared_request.response_tokens
        response = await self._run(
            lambda: write_response(
                prepared_request, outcomes, request, response, call.request_id, self._metrics
            ),
            tokens,
            call.client,
        )
        self._response_time.record(tokens, time.perf_counter() - started_at)
        telemetry = current_call.get()
        telemetry.failed_lists += sum(answer.status.code != 0 for answer in response.lists)
        response.timing.CopyFrom(make_timing(outcomes, call.arrived_at, telemetry.timings))
        return response

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


def estimate_tokens() -> int:
    """Estimate the number of tokens of the current message from its size, before they are counted."""
    return current_call.get().request_bytes // BYTES_PER_TOKEN


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

"""Owns the methods of ``RescorerService``: let a request in, plan it, have it scored, answer it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

import grpc
import structlog

from rescorer.errors import Overloaded
from rescorer.list_ranker import ListRanker
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceServicer
from rescorer.service.api.auth import current_client
from rescorer.service.api.call_telemetry import current_call
from rescorer.service.api.drain import Drain
from rescorer.service.api.planning import (
    Plan,
    RescoreAnswer,
    RescoreRequest,
    answer_lists,
    answer_texts,
    plan_lists,
    plan_texts,
)
from rescorer.service.api.request_limits import check_request, check_texts
from rescorer.service.api.shadow import Shadow
from rescorer.service.engine.admission import Admission, Quota
from rescorer.service.engine.dispatch import Caller, Dispatcher, ListOutcome
from rescorer.service.engine.offload import Offloader
from rescorer.service.models.repository import ModelRepository
from rescorer.service.observability.metrics import Metrics
from rescorer.service.observability.request_id import current_request
from rescorer.service.observability.timings import PhaseTiming, sum_by_phase
from rescorer.service.settings import BYTES_PER_TOKEN, ServiceSettings

Response = TypeVar("Response")

log = structlog.get_logger()


class RescorerService(RescorerServiceServicer):
    """Faults are raised as they are; the interceptor turns them into statuses.

    Args:
        admission: lets calls in; ``late`` those that take less than a whole answer.
        offloader: by which messages become words and scores become messages.
        shadow: is offered what is answered.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        models: ModelRepository,
        admission: Admission,
        late: Admission,
        scoring: Dispatcher,
        offloader: Offloader,
        drain: Drain,
        metrics: Metrics,
        shadow: Shadow | None = None,
    ) -> None:
        self._settings = settings
        self._models = models
        self._admission, self._late = admission, late
        self._dispatcher = scoring
        self._offloader = offloader
        self._drain = drain
        self._metrics = metrics
        self._shadow = shadow
        self.streams = Quota("streams", settings.max_streams, settings.max_client_streams)

    async def Rescore(  # noqa: N802 (the name in the proto)
        self, request: pb.RescoreRequest, context: grpc.aio.ServicerContext
    ) -> pb.RescoreResponse:
        response = await self._rescore(request, pb.RescoreResponse(), context, wait=False)
        if (shadow := self._shadow) is not None:
            request_id = current_request.get()
            context.add_done_callback(lambda _: shadow.offer(request, response, request_id))  # type: ignore[arg-type]  # the stubs lack Protocol
        return response

    async def RescoreStream(  # noqa: N802
        self, requests: AsyncIterator[pb.RescoreStreamRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.RescoreStreamResponse]:
        client = client_of(context)
        if refusal := self.streams.refusal(client, 1, shared=False):
            raise Overloaded(f"{refusal}; try later", retry_after_s=1.0)
        self.streams.add(client, 1)
        try:
            async with aclosing(self._drain.messages(requests)) as messages:
                async for request in messages:
                    response = await self._rescore(request, pb.RescoreStreamResponse(), context, wait=True)
                    yield response
                    if self._shadow is not None:
                        self._shadow.offer(request, response, current_request.get())
        finally:
            self.streams.add(client, -1)

    async def ScoreText(  # noqa: N802
        self, request: pb.ScoreTextRequest, context: grpc.aio.ServicerContext
    ) -> pb.ScoreTextResponse:
        check_texts(request, self._settings)
        if self._settings.log_texts:
            log.info("texts", texts=list(request.texts))
        caller = self._caller(context)
        with self._models.lease(request.model) as ranker:
            async with self._admission.admitted(
                caller.client, 1, tokens_in(request), remaining_s=caller.remaining_s
            ) as ticket:
                plan = await self._done(lambda: plan_texts(ranker, request), tokens_in(request))
                self._admission.correct(ticket, plan.tokens)
                outcomes = await self._outcomes(plan, caller)
                response = await self._done(lambda: answer_texts(plan, outcomes), plan.tokens)
        response.timing.CopyFrom(timing(outcomes, caller.arrived, current_call.get().timings))
        return response

    async def _rescore(
        self,
        request: RescoreRequest,
        response: RescoreAnswer,
        context: grpc.aio.ServicerContext,
        *,
        wait: bool,
    ) -> RescoreAnswer:
        """Admits a request and answers it; one that is refused is answered by less where it allows that."""
        check_request(request, self._settings)
        if self._settings.log_texts:
            texts = [[each.text for each in nbest.hypotheses] for nbest in request.lists]
            log.info("texts", lists=texts)
        caller = replace(self._caller(context), fallback=request.fallback)
        size = len(request.lists), tokens_in(request)
        with self._models.lease(request.model) as ranker:
            try:
                async with self._admission.admitted(
                    caller.client, *size, remaining_s=caller.remaining_s, wait=wait
                ) as ticket:
                    plan = await self._planned(ranker, request)
                    self._admission.correct(ticket, plan.tokens)
                    outcomes = await self._outcomes(plan, caller)
                    return await self._answered(plan, outcomes, request, response, caller)
            except Overloaded:
                self._metrics.rejected_lists.inc(len(request.lists))
                if not caller.fallback:
                    raise
            async with self._late.admitted(caller.client, *size):
                plan = await self._planned(ranker, request)
                outcomes = await self._outcomes(plan, caller, late=True)
                return await self._answered(plan, outcomes, request, response, caller)

    async def _answered(
        self,
        plan: Plan,
        outcomes: list[ListOutcome],
        request: RescoreRequest,
        response: RescoreAnswer,
        caller: Caller,
    ) -> RescoreAnswer:
        answered = await self._done(
            lambda: answer_lists(plan, outcomes, request, response, caller.request_id, self._metrics),
            plan.tokens,
        )
        call = current_call.get()
        call.failed_lists += sum(each.status.code != 0 for each in answered.lists)
        answered.timing.CopyFrom(timing(outcomes, caller.arrived, call.timings))
        return answered

    async def _outcomes(self, plan: Plan, caller: Caller, *, late: bool = False) -> list[ListOutcome]:
        call = current_call.get()
        call.model = plan.ranker.bundle.label
        call.lists += len(plan.lists)
        outcomes = await self._dispatcher.outcomes(plan.ranker, plan.good, caller, late=late)
        call.scored([part for outcome in outcomes for part in outcome.parts])
        return outcomes

    async def _planned(self, ranker: ListRanker, request: RescoreRequest) -> Plan:
        return await self._done(lambda: plan_lists(ranker, request, self._settings), tokens_in(request))

    async def _done(self, job: Callable[[], Response], tokens: int) -> Response:
        result, timings = await self._offloader.run(job, tokens)
        current_call.get().did(timings)
        return result

    def _caller(self, context: grpc.aio.ServicerContext) -> Caller:
        remaining_s = context.time_remaining()
        bound_s = self._settings.max_wait_s
        allowed_s = bound_s if remaining_s is None else min(remaining_s, bound_s)
        return Caller(
            client_of(context), current_request.get(), time.perf_counter(), time.monotonic() + allowed_s
        )


def client_of(context: grpc.aio.ServicerContext) -> Hashable:
    """Whose call it is, as far as limits and fairness go: a known client's, or a connection's."""
    return current_client.get() or context.peer()


def tokens_in(request: RescoreRequest | pb.ScoreTextRequest) -> int:
    """How many words a request has, as its size tells before they are counted."""
    return request.ByteSize() // BYTES_PER_TOKEN


def timing(outcomes: list[ListOutcome], arrived: float, timings: list[PhaseTiming]) -> pb.Timing:
    """Until the first batch began, all batches' time, and that of each phase so far."""
    parts = [part for outcome in outcomes for part in outcome.parts]
    batches = {id(part.batch): part.batch for part in parts}.values()
    began = min((part.queue.began + part.queue.seconds for part in parts), default=arrived)
    compute_s = sum(timing.seconds for batch in batches for timing in batch.timings)
    phase_ms = {phase: seconds * 1e3 for phase, seconds in sum_by_phase(timings).items()}
    return pb.Timing(queue_ms=(began - arrived) * 1e3, compute_ms=compute_s * 1e3, phase_ms=phase_ms)

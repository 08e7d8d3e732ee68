"""Owns the methods of ``RescorerService``: check the size, score in the worker, add the timing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from rescorer.errors import Unavailable
from rescorer.service.answers import Answers, RescoreAnswer
from rescorer.service.drain import Drain
from rescorer.service.limits import check_request, check_texts
from rescorer.service.settings import ServiceSettings
from rescorer.service.v1 import rescorer_pb2 as pb
from rescorer.service.v1.rescorer_pb2_grpc import RescorerServiceServicer
from rescorer.service.worker import Timed, Worker


class RescorerService(RescorerServiceServicer):
    """Faults are raised as they are; the interceptor turns them into statuses."""

    def __init__(self, settings: ServiceSettings, worker: Worker, drain: Drain) -> None:
        self._settings = settings
        self._worker = worker
        self._drain = drain
        self.answers: Answers | None = None
        """None until the models are loaded."""

    async def Rescore(  # noqa: N802 (the name in the proto)
        self, request: pb.RescoreRequest, context: grpc.aio.ServicerContext
    ) -> pb.RescoreResponse:
        return await self._rescore(request, pb.RescoreResponse(), wait=False)

    async def RescoreStream(  # noqa: N802
        self, requests: AsyncIterator[pb.RescoreStreamRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.RescoreStreamResponse]:
        async with aclosing(self._drain.messages(requests)) as messages:
            async for request in messages:
                yield await self._rescore(request, pb.RescoreStreamResponse(), wait=True)

    async def ScoreText(  # noqa: N802
        self, request: pb.ScoreTextRequest, context: grpc.aio.ServicerContext
    ) -> pb.ScoreTextResponse:
        check_texts(request, self._settings)
        answers = self._loaded()
        response, timed = await self._worker.run(lambda: answers.score_text(request), 1)
        response.timing.CopyFrom(timing(timed))
        return response

    async def _rescore(
        self,
        request: pb.RescoreRequest | pb.RescoreStreamRequest,
        response: RescoreAnswer,
        *,
        wait: bool,
    ) -> RescoreAnswer:
        check_request(request, self._settings)
        answers = self._loaded()
        lists = len(request.lists)
        response, timed = await self._worker.run(lambda: answers.rescore(request, response), lists, wait=wait)
        response.timing.CopyFrom(timing(timed))
        return response

    def _loaded(self) -> Answers:
        if self.answers is None:
            raise Unavailable("the models are being loaded")
        return self.answers


def timing(timed: Timed) -> pb.Timing:
    return pb.Timing(queue_ms=timed.queue_ms, compute_ms=timed.compute_ms)

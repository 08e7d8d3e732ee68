"""The gRPC health service (grpc.health.v1), whose watchers cannot hinder one another.

The servicer of grpcio-health-checking holds a lock while it writes to a watcher: one client that does not
read makes all later watches hang, and the server's shutdown too. Here every watch compares the current status
with the one it has sent last, without a lock, so that a slow reader skips what it has missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
from grpc_health.v1.health_pb2 import (  # type: ignore[attr-defined]  # the stubs lack List
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)
from grpc_health.v1.health_pb2_grpc import HealthServicer

from rescorer.errors import Overloaded
from rescorer.protocol.missing_models import MISSING_MODELS, encode_missing_models
from rescorer.service.limits.stream_slots import StreamSlots

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
Status = HealthCheckResponse.ServingStatus


class Health(HealthServicer):
    """One status for the whole server, under several names; NOT_SERVING until it is set.

    Args:
        names: names that clients may ask for.
        watches: places for open watches.
    """

    def __init__(self, names: Sequence[str], watches: StreamSlots) -> None:
        self._names = tuple(names)
        self._watches = watches
        self._status: int = NOT_SERVING
        self._shutting_down = False
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved and replaced by another future whenever the status changes."""
        self.missing_models: tuple[str, ...] = ()
        """Models that serve from memory although the disk lacks them; sent as metadata of ``Check``."""

    def set(self, status: int) -> None:
        """Set the status; ignored after ``begin_shutdown``."""
        if self._shutting_down or status == self._status:
            return
        self._status = status
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    def begin_shutdown(self) -> None:
        """Report NOT_SERVING from now on."""
        self.set(NOT_SERVING)
        self._shutting_down = True

    async def Check(  # type: ignore[override]  # noqa: N802 (the name in the proto; the stubs know threads only)
        self, request: HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> HealthCheckResponse:
        if request.service not in self._names:
            names = " or ".join(map(repr, self._names))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service; expected {names}")
        if self.missing_models:
            missing = encode_missing_models(self.missing_models)
            context.set_trailing_metadata(((MISSING_MODELS, missing),))
        return HealthCheckResponse(status=self._status)

    async def List(  # noqa: N802
        self, request: HealthListRequest, context: grpc.aio.ServicerContext
    ) -> HealthListResponse:
        response = HealthCheckResponse(status=self._status)
        return HealthListResponse(statuses=dict.fromkeys(self._names, response))

    async def Watch(  # type: ignore[override]  # noqa: N802
        self, request: HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[HealthCheckResponse]:
        """Send the status whenever it has changed; SERVICE_UNKNOWN, once, for a name that is not served."""
        try:
            with self._watches.hold(context.peer()) as slot:
                known, sent = request.service in self._names, None
                while not slot.revoked.done():
                    changed = self._changed
                    status = self._status if known else HealthCheckResponse.SERVICE_UNKNOWN
                    if status != sent:
                        yield HealthCheckResponse(status=status)
                        sent = status
                        continue  # it may have changed while it was written
                    await asyncio.wait((changed, slot.revoked), return_when=asyncio.FIRST_COMPLETED)
            raise Overloaded("this watch had to end in favour of another client's; try again later")
        except Overloaded as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

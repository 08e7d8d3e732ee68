"""Owns the methods of ``AdminService``."""

from __future__ import annotations

import grpc

from rescorer.service.reloading import Reloader
from rescorer.service.v1 import admin_pb2 as pb
from rescorer.service.v1.admin_pb2_grpc import AdminServiceServicer

ADMIN_SERVICE = pb.DESCRIPTOR.services_by_name["AdminService"].full_name


class AdminService(AdminServiceServicer):
    """For callers with the role ``admin``, which ``Access`` sees to."""

    def __init__(self, reloader: Reloader) -> None:
        self._reloader = reloader

    async def Reload(  # noqa: N802 (the name in the proto)
        self, request: pb.ReloadRequest, context: grpc.aio.ServicerContext
    ) -> pb.ReloadResponse:
        return pb.ReloadResponse(**vars(await self._reloader.reload_all()))

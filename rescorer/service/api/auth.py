"""Owns who may call what: a token or a client certificate tells the client, the file of clients its roles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import grpc
import structlog

from rescorer.errors import PermissionDenied, ServiceError, Unauthenticated
from rescorer.protocol.status import kind_of
from rescorer.service.api.call_telemetry import Telemetry
from rescorer.service.api.interceptors import abort
from rescorer.service.net.clients_file import ClientEntry, Role, hash_token, read_clients

AUTHORIZATION, BEARER = "authorization", "bearer "

current_client: ContextVar[str] = ContextVar("client", default="")
"""Name of the client whose call this task answers; empty where nobody has to say who they are."""


class Access:
    """The clients of a file, found by what they show; without a file all may call.

    Args:
        path: the file; None: there is none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._by_token: Mapping[str, ClientEntry] = {}
        self._by_certificate: Mapping[str, ClientEntry] = {}
        self.reload()

    def reload(self) -> None:
        """Reads the file again; raises ConfigError, and then the old clients stay."""
        if self._path is None:
            return
        clients = read_clients(self._path)
        self._by_token = {digest: each for each in clients for digest in each.token_sha256}
        self._by_certificate = {name: each for each in clients for name in each.certificates}

    def let_in(self, context: grpc.aio.ServicerContext, role: Role) -> str:
        """The client's name, empty where there is no file.

        Raises:
            Unauthenticated: it shows nothing, or what nobody has.
            PermissionDenied: it has not the role.
        """
        if self._path is None:
            return ""
        client = self._client(context)
        if role not in client.roles:
            raise PermissionDenied(f"client {client.name!r} has not the role {role!r}")
        return client.name

    def _client(self, context: grpc.aio.ServicerContext) -> ClientEntry:
        shown = [value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION]
        if shown:
            value = str(shown[0])
            known = self._by_token.get(hash_token(value[len(BEARER) :].strip()))
            if known is None or len(shown) > 1 or not value.lower().startswith(BEARER):
                raise Unauthenticated("the token is not known; expected metadata authorization: Bearer TOKEN")
            return known
        for name in context.peer_identities() or ():
            known = self._by_certificate.get(name.decode("utf-8", "replace"))
            if known is not None:
                return known
        if self._by_certificate and not self._by_token:
            raise Unauthenticated("the certificate is of no client that is known")
        raise Unauthenticated("no token; expected metadata authorization: Bearer TOKEN")


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Lets nobody through to a service whose role they have not.

    Args:
        roles: by full name of a service; the others are open, as health is for whoever restarts servers.
        telemetry: told of who is refused.
    """

    def __init__(self, access: Access, roles: Mapping[str, Role], telemetry: Telemetry) -> None:
        self._access = access
        self._roles = roles
        self._telemetry = telemetry

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        role = self._roles.get(path.lstrip("/").split("/")[0])
        if handler is None or role is None:
            return handler
        if handler.request_streaming:
            return handler._replace(stream_stream=self._guarded_stream(handler.stream_stream, path, role))
        return handler._replace(unary_unary=self._guarded_unary(handler.unary_unary, path, role))

    def _guarded_unary(self, behaviour: Callable[..., Any], path: str, role: Role) -> Callable[..., Any]:
        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            await self._let_in(path, context, role)
            return await behaviour(request, context)

        return call

    def _guarded_stream(self, behaviour: Callable[..., Any], path: str, role: Role) -> Callable[..., Any]:
        async def call(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            await self._let_in(path, context, role)
            async for response in behaviour(requests, context):
                yield response

        return call

    async def _let_in(self, path: str, context: grpc.aio.ServicerContext, role: Role) -> None:
        try:
            client = self._access.let_in(context, role)
        except ServiceError as fault:
            structlog.contextvars.bind_contextvars(peer=context.peer())
            call = self._telemetry.began(path, context)
            call.ended("caller refused", kind_of(fault).code.name, fault)
            await abort(context, fault)
        current_client.set(client)
        if client:
            structlog.contextvars.bind_contextvars(client=client)

"""Authenticate clients by token or certificate, and authorise them by the roles in the clients file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import structlog

from rescorer.errors import PermissionDenied, Unauthenticated
from rescorer.protocol.status import error_kind
from rescorer.service.api.call_telemetry import Telemetry
from rescorer.service.api.caller import current_client
from rescorer.service.api.interceptors import abort
from rescorer.service.net.clients_file import ClientEntry, Role, hash_token, read_clients

AUTHORIZATION, BEARER = "authorization", "bearer "


class Authenticator:
    """Identify the client that makes a call; without a clients file, anyone may make calls.

    Args:
        path: the clients file, if any.

    Raises:
        ConfigError: If the file is invalid.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._by_token: Mapping[str, ClientEntry] = {}
        self._by_certificate: Mapping[str, ClientEntry] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again.

        Raises:
            ConfigError: If the file is invalid; the previously read clients stay valid.
        """
        if self._path is None:
            return
        clients = read_clients(self._path)
        self._by_token = {digest: client for client in clients for digest in client.token_sha256}
        self._by_certificate = {name: client for client in clients for name in client.certificates}

    def authorise(self, context: grpc.aio.ServicerContext, role: Role) -> str:
        """Return the client's name, empty without a clients file.

        Raises:
            Unauthenticated: If the call has neither a known token nor a known certificate.
            PermissionDenied: If the client does not have the role.
        """
        if self._path is None:
            return ""
        client = self._authenticate(context)
        if role not in client.roles:
            raise PermissionDenied(
                f"client {client.name!r} does not have the role {role!r}; add it to the clients file"
            )
        return client.name

    def _authenticate(self, context: grpc.aio.ServicerContext) -> ClientEntry:
        headers = [value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION]
        if headers:
            value = str(headers[0])
            client = self._by_token.get(hash_token(value[len(BEARER) :].strip()))
            if client is None or len(headers) > 1 or not value.lower().startswith(BEARER):
                raise Unauthenticated("unknown token; expected metadata authorization: Bearer TOKEN")
            return client
        for name in context.peer_identities() or ():
            client = self._by_certificate.get(name.decode("utf-8", "replace"))
            if client is not None:
                return client
        if self._by_certificate and not self._by_token:
            raise Unauthenticated("unknown client certificate; add its name to the clients file")
        raise Unauthenticated("no token; expected metadata authorization: Bearer TOKEN")


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Refuse calls to a service from clients that do not have its role.

    Args:
        roles: required role by full service name. Other services are open, such as health checks, which
            orchestrators make without credentials.
        telemetry: logs refused calls.
    """

    def __init__(self, authenticator: Authenticator, roles: Mapping[str, Role], telemetry: Telemetry) -> None:
        self._authenticator = authenticator
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
            return handler._replace(stream_stream=self._guard_stream(handler.stream_stream, path, role))
        return handler._replace(unary_unary=self._guard_unary(handler.unary_unary, path, role))

    def _guard_unary(self, behaviour: Callable[..., Any], path: str, role: Role) -> Callable[..., Any]:
        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            await self._authorise_or_abort(path, context, role)
            return await behaviour(request, context)

        return call

    def _guard_stream(self, behaviour: Callable[..., Any], path: str, role: Role) -> Callable[..., Any]:
        async def call(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            await self._authorise_or_abort(path, context, role)
            async for response in behaviour(requests, context):
                yield response

        return call

    async def _authorise_or_abort(self, path: str, context: grpc.aio.ServicerContext, role: Role) -> None:
        try:
            client = self._authenticator.authorise(context, role)
        except Exception as error:  # a bug must not reach the client as UNKNOWN with its text
            structlog.contextvars.bind_contextvars(peer=context.peer())
            call = self._telemetry.begin(path, context)
            call.finish("caller refused", error_kind(error).code.name, error)
            await abort(context, error)
        current_client.set(client)
        if client:
            structlog.contextvars.bind_contextvars(client=client)

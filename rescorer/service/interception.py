"""Create the gRPC server, and what every call passes before its method: slow clients, authentication, limits
and errors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import grpc
from grpc_reflection.v1alpha import reflection

from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.api.auth import Authenticator, AuthInterceptor
from rescorer.service.api.call_telemetry import Telemetry
from rescorer.service.api.drain import Drain
from rescorer.service.api.interceptors import ErrorInterceptor
from rescorer.service.api.management import ADMIN_SERVICE, MODEL_SERVICE
from rescorer.service.limits.call_memory import CallMemory
from rescorer.service.limits.refusal_pacing import RefusalPacer
from rescorer.service.limits.slow_clients import SlowClientInterceptor
from rescorer.service.net.clients_file import Role
from rescorer.service.net.connection_limits import connection_options
from rescorer.service.net.grpc_listener import create_grpc_server
from rescorer.service.settings import ServiceSettings

SERVICE = pb.DESCRIPTOR.services_by_name["RescorerService"].full_name
ROLES: Mapping[str, Role] = MappingProxyType(
    {
        SERVICE: "score",
        MODEL_SERVICE: "score",
        reflection.SERVICE_NAME: "score",
        ADMIN_SERVICE: "admin",
    }
)
"""The role that callers of each service need. The health service is open to all, because probes have no
identity."""
OWN_SERVICES = (SERVICE, MODEL_SERVICE, ADMIN_SERVICE)
"""Services whose errors we turn into statuses; health and reflection create their own statuses."""

MAX_ARRIVING_BYTES = 256 * 1024 * 1024
"""Bound on the memory of requests that are still arriving, those of streams aside."""
MIN_ARRIVING = 8
"""Number of requests that may arrive at the same time, however large they may be."""


def create_listener(
    settings: ServiceSettings,
    authenticator: Authenticator,
    telemetry: Telemetry,
    drain: Drain,
    memory: CallMemory,
) -> grpc.aio.Server:
    """Create the gRPC server with its interceptors and limits, without services and ports."""
    return create_grpc_server(
        create_interceptors(settings, authenticator, telemetry, drain, memory),
        settings.max_calls_per_connection,
        [
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            # Otherwise two servers would share a port without any error.
            ("grpc.so_reuseport", int(settings.front_ends > 1)),
            *connection_options(
                settings.max_connection_age_s,
                settings.max_connection_age_grace_s,
                settings.max_idle_connection_s,
                settings.max_handshake_s,
            ),
        ],
    )


def create_interceptors(
    settings: ServiceSettings,
    authenticator: Authenticator,
    telemetry: Telemetry,
    drain: Drain,
    memory: CallMemory,
) -> list[grpc.aio.ServerInterceptor]:
    """Create the interceptors of a server, in the order in which calls pass them."""
    pacer = RefusalPacer()
    return [
        SlowClientInterceptor(
            settings.max_wait_s,
            settings.max_idle_s,
            max(MIN_ARRIVING, MAX_ARRIVING_BYTES // settings.max_message_bytes),
            [reflection.SERVICE_NAME],
        ),
        AuthInterceptor(authenticator, ROLES, telemetry),
        *(
            ErrorInterceptor(
                service,
                drain,
                telemetry,
                memory,
                pacer,
                settings.max_response_bytes if service == SERVICE else 0,
            )
            for service in OWN_SERVICES
        ),
    ]

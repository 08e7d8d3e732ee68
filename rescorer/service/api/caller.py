"""Identify the caller of the current call, for limits and fairness."""

from __future__ import annotations

from collections.abc import Hashable
from contextvars import ContextVar

import grpc

current_client: ContextVar[str] = ContextVar("client", default="")
"""Name of the client whose call this task handles; empty if clients do not have to authenticate."""


def client_of(context: grpc.aio.ServicerContext) -> Hashable:
    """Identify the caller for limits and fairness: the authenticated client, otherwise the connection."""
    return current_client.get() or context.peer()

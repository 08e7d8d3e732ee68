"""gRPC's options that end connections: too old, idle, without a handshake, or with a peer that is gone."""

from __future__ import annotations

NEVER_MS = 2**31 - 1
MIN_PING_INTERVAL_MS = 30_000
"""Shortest interval at which clients may ping. Our clients ping every minute; gRPC's default of 5 minutes
would disconnect them."""
KEEPALIVE_INTERVAL_MS, KEEPALIVE_TIMEOUT_MS = 60_000, 20_000
"""How often the server pings a silent client, and how long it waits for the reply, which gRPC's clients give
by themselves. By default gRPC notices only after two hours that a client is gone."""

WINDOW_BYTES = 65_535
"""What clients may send of a message that nobody has asked for yet (RFC 9113, section 6.9.2). Otherwise gRPC
raises it to hundreds of megabytes for clients that send fast."""


def connection_options(
    max_age_s: float, max_age_grace_s: float, max_idle_s: float, max_handshake_s: float
) -> list[tuple[str, int]]:
    """Return the options of a gRPC server; a time of 0 means that there is no limit."""
    return [
        ("grpc.max_connection_age_ms", to_ms(max_age_s)),
        ("grpc.max_connection_age_grace_ms", to_ms(max_age_grace_s)),
        ("grpc.max_connection_idle_ms", to_ms(max_idle_s)),
        ("grpc.server_handshake_timeout_ms", to_ms(max_handshake_s)),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ]


def to_ms(seconds: float) -> int:
    return min(round(seconds * 1e3), NEVER_MS) or NEVER_MS

"""The gRPC service: proto ↔ types, faults ↔ status codes, limits and server wiring; scores nothing itself."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Of one request, unless a server is set otherwise: gRPC's own default, said out loud at both ends."""

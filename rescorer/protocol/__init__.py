"""The gRPC protocol that clients and the service share: generated code, messages and statuses.

Converts lists, weights, rankings and errors to protocol messages and back.
"""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Default maximum size of a request in bytes; equals gRPC's own default."""

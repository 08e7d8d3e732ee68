"""The gRPC protocol of clients and the service: generated code, and conversions to messages and back.

Lists, weights, rankings and errors come in; protocol messages and statuses go out, and the other way round.
"""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Default maximum size of a request in bytes; equals gRPC's own default."""

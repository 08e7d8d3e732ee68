"""Messages, generated code and the table of errors and statuses, for client and service alike."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Of one request, unless a server is set otherwise: gRPC's own default, said out loud at both ends."""

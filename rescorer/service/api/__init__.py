"""Implement the gRPC methods: check a request, prepare it, have the engine score it, and write the response.

Protocol messages come in and go out; errors become gRPC statuses, and every call leaves a line in the log.
"""

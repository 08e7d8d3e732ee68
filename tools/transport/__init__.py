"""Compare the frames to workers with grpc.aio over a Unix socket: ``python -m tools.transport``."""

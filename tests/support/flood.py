"""Flood a server from a process of its own until it is killed.

python -m tests.support.flood TARGET CONNECTIONS CALLS_PER_CONNECTION LISTS_PER_CALL FALLBACK TOKEN

Refused calls are repeated almost at once, without regard to the server's wish.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from tests.support.stubs import make_list_message

TEXTS = tuple(f"the cat sat on the mat {number}" for number in range(20))
PAUSE_S = 0.0
"""Pause after a refusal: none, as a client that ignores what the refusal asks for."""


@contextmanager
def flood(
    target: str, connections: int = 1, calls: int = 64, lists: int = 8, fallback: int = 0, token: str = ""
) -> Iterator[None]:
    arguments = (target, connections, calls, lists, fallback, token)
    process = subprocess.Popen([sys.executable, "-m", "tests.support.flood", *map(str, arguments)])
    try:
        yield
        assert process.poll() is None, "the flood has ended early"
    finally:
        process.kill()
        process.wait()


async def main(target: str, connections: int, calls: int, lists: int, fallback: int, token: str) -> None:
    request = pb.RescoreRequest(lists=[make_list_message(texts=TEXTS)] * lists, fallback=fallback)
    metadata = (("authorization", f"Bearer {token}"),) if token else ()

    async def call_repeatedly(stub: RescorerServiceStub) -> None:
        while True:
            try:
                await stub.Rescore(request, timeout=30, metadata=metadata)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(PAUSE_S)

    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    stubs = [RescorerServiceStub(grpc.aio.insecure_channel(target, options)) for _ in range(connections)]
    await asyncio.gather(*(call_repeatedly(stub) for stub in stubs for _ in range(calls)))


if __name__ == "__main__":
    os.nice(5)
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]))

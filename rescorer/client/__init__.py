"""Python client of the service, blocking and asyncio, that takes and returns the library's own types.

    with Client("10.0.0.5:50051,10.0.0.6:50051") as client:
        client.wait_ready(timeout_s=30)
        for answer in client.rescore_stream(lists):
            ...

Requires neither torch nor kenlm. If a list cannot be scored, an exception object takes the place of its
answer; errors that affect a whole call are raised: ``Overloaded``, ``Unavailable``, ``DeadlineExceeded``,
``ConfigError``, ….
"""

from rescorer.client.asynchronous import AsyncClient
from rescorer.client.blocking import Client
from rescorer.client.connection import NO_RETRY, Retry
from rescorer.client.identity import Tls

__all__ = ["NO_RETRY", "AsyncClient", "Client", "Retry", "Tls"]

"""Python client of the service, blocking and asyncio, that takes and returns the library's own types.

    with Client("10.0.0.5:50051,10.0.0.6:50051") as client:
        client.wait_ready(timeout_s=30)
        for answer in client.rescore_stream(lists):
            ...

Needs neither torch nor kenlm. The answer to a list that cannot be scored is an exception object in its place;
errors of a whole call are raised: ``Overloaded``, ``Unavailable``, ``DeadlineExceeded``, ``ConfigError``, ….
"""

from rescorer.client.asynchronous import AsyncClient
from rescorer.client.blocking import Client
from rescorer.client.connection import NO_RETRY, Retry
from rescorer.client.identity import Tls

__all__ = ["NO_RETRY", "AsyncClient", "Client", "Retry", "Tls"]

"""Python client of the service, blocking and asyncio, that takes and returns the library's own types.

    with Client("10.0.0.5:50051,10.0.0.6:50051") as client:
        client.wait_ready(timeout_s=30)
        for answer in client.rescore_stream(lists):
            ...

The client requires neither torch nor kenlm. If a list cannot be scored, ``rescore`` raises the error, and
``rescore_each`` and ``rescore_stream`` return it in place of the list. If a whole call fails, all methods
raise the error: ``Overloaded``, ``Unavailable``, ``DeadlineExceeded``, ``ConfigError``, ….
"""

from rescorer.client.clients import AsyncClient, Client
from rescorer.client.connection import NO_RETRY, ConnectionOptions, Retry, Tls

__all__ = ["NO_RETRY", "AsyncClient", "Client", "ConnectionOptions", "Retry", "Tls"]

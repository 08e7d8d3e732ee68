"""Python client of the service, blocking and asyncio, that takes and returns the library's own types.

    with Client("10.0.0.5:50051,10.0.0.6:50051") as client:
        client.wait_ready(timeout_s=30)
        for answer in client.rescore_stream(lists):
            ...

Requires neither torch nor kenlm. ``rescore`` raises the first error of a list; ``rescore_each`` and
``rescore_stream`` return errors in place of the lists that cannot be scored. Errors that affect a whole call
are raised by all: ``Overloaded``, ``Unavailable``, ``DeadlineExceeded``, ``ConfigError``, ….
"""

from rescorer.client.clients import AsyncClient, Client
from rescorer.client.connection import NO_RETRY, ConnectionOptions, Retry, Tls

__all__ = ["NO_RETRY", "AsyncClient", "Client", "ConnectionOptions", "Retry", "Tls"]

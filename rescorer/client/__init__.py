"""Owns the Python client, blocking and asyncio: the library's own types in and out, its own faults raised.

    with Client("10.0.0.5:50051,10.0.0.6:50051") as client:
        client.wait_ready(timeout_s=30)
        for answer in client.rescore_stream(lists):
            ...

Needs neither torch nor kenlm. A list that cannot be scored is answered by its fault, in its place; what
concerns a whole call is raised: ``Overloaded``, ``Unavailable``, ``DeadlineExceeded``, ``ConfigError``…
"""

from rescorer.client.asynchronous import AsyncClient
from rescorer.client.blocking import Client
from rescorer.client.connection import NO_RETRY, Retry
from rescorer.client.identity import Tls

__all__ = ["NO_RETRY", "AsyncClient", "Client", "Retry", "Tls"]

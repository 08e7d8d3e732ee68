"""The HTTP port where Prometheus reads the metrics, served by threads of its own."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, start_http_server

from rescorer.errors import ConfigError
from rescorer.protocol.addresses import format_address
from rescorer.service.net.addresses import explain


class MetricsEndpoint:
    """Answer GET /metrics from construction until stopped.

    Args:
        port: 0: any free port.

    Raises:
        ConfigError: If the address is taken.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            address = format_address(host, port)
            raise ConfigError(f"metrics cannot listen on {address}: {explain(error)}") from None
        self.port: int = self._server.server_port

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        self._thread.join()

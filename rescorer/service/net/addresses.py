"""Check that an address is free to listen on, and keep a port for several processes."""

from __future__ import annotations

import errno
import socket

from rescorer.errors import ConfigError
from rescorer.protocol.addresses import format_address

NO_ADDRESS = (errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL)
"""Errors for addresses of other machines and for unknown names."""


def check_free(host: str, port: int, what: str) -> None:
    """Check that an address is free to listen on; gRPC's own error does not say what is wrong.

    Args:
        what: the subject of the error message, such as ``the service``.

    Raises:
        ConfigError: If nothing can listen there.
    """
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise ConfigError(f"{what} cannot listen on {format_address(host, port)}: {explain(error)}") from None


def keep_port(host: str, port: int, what: str) -> socket.socket:
    """Reserve an address for processes that listen there with SO_REUSEPORT; port 0 reserves any free port.

    No other user's process can listen there while the returned socket is open.

    Raises:
        ConfigError: If nothing can listen there.
    """
    check_free(host, port, what)
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    for option, value in ((socket.SO_REUSEADDR, 1), (socket.SO_REUSEPORT, 1)):
        reserved.setsockopt(socket.SOL_SOCKET, option, value)
    reserved.bind((host, port))
    # SO_REUSEADDR was needed to bind despite connections that a previous server left. While it is set,
    # other processes could listen here too.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return reserved


def explain(error: OSError) -> str:
    """Explain why a socket cannot listen, and what to do."""
    if error.errno in NO_ADDRESS:
        return "this machine has no such address"
    if error.errno == errno.EADDRINUSE:
        return "another process does already; choose another port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return "permission denied; choose a port above 1023"
    return str(error.strerror)

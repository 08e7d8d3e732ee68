"""Check that an address is free to listen on, and keep a port for several processes."""

from __future__ import annotations

import errno
import socket

from rescorer.errors import ConfigError
from rescorer.protocol.addresses import address

NO_ADDRESS = (errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL)
"""What is said of addresses of other machines, and of names that nobody knows."""


def check_free(host: str, port: int, what: str) -> None:
    """Raises ConfigError, naming ``what`` would listen there, where nobody can; gRPC does not tell why."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as fault:
        raise ConfigError(f"{what} cannot listen on {address(host, port)}: {why_not(fault)}") from None


def keep_port(host: str, port: int, what: str) -> socket.socket:
    """Takes an address, 0: with any free port, for processes of ours that listen there with SO_REUSEPORT.

    Nobody else's can as long as the socket is open, whether ours do or not. Raises as ``check_free``.
    """
    check_free(host, port, what)
    kept = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    for option, value in ((socket.SO_REUSEADDR, 1), (socket.SO_REUSEPORT, 1)):
        kept.setsockopt(socket.SOL_SOCKET, option, value)
    kept.bind((host, port))
    # Needed for the connections that a server before has left; while it is set others could listen here.
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return kept


def why_not(fault: OSError) -> str:
    """Why a socket cannot listen, and what to do."""
    if fault.errno in NO_ADDRESS:
        return "this machine has no such address"
    if fault.errno == errno.EADDRINUSE:
        return "another process does; choose another port, or 0 for any free one"
    if fault.errno == errno.EACCES:
        return "it is not allowed; choose a port above 1023"
    return str(fault.strerror)

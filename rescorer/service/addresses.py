"""Owns which addresses stay on this machine, and whether it lets us listen on them."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket

from rescorer.errors import ConfigError

NO_ADDRESS = (errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL)
"""What is said of addresses of other machines, and of names that nobody knows."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address(host: str, port: int) -> str:
    """As gRPC and URLs write it.

    >>> address("::1", 50051)
    '[::1]:50051'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local_target(target: str) -> bool:
    """Whether what a client connects to can only be on this machine.

    >>> is_local_target("ipv4:127.0.0.1:1,127.0.0.1:2"), is_local_target("dns:///example.org:1")
    (True, False)
    """
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    addresses = re.sub(r"^(dns:(//[^/]*/)?|ipv4:|ipv6:)", "", target).split(",")
    return all(is_loopback(re.sub(r":\d+$", "", each).strip("[]")) for each in addresses)


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

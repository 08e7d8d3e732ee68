"""Format addresses, and detect those that stay on this machine."""

from __future__ import annotations

import ipaddress
import re


def is_loopback(host: str) -> bool:
    """Whether a host name or IP address is a loopback address of this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def format_address(host: str, port: int) -> str:
    """Join host and port as in gRPC targets and URLs.

    >>> format_address("::1", 50051)
    '[::1]:50051'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local_target(target: str) -> bool:
    """Whether a gRPC target can only be on this machine.

    >>> is_local_target("ipv4:127.0.0.1:1,127.0.0.1:2"), is_local_target("dns:///example.org:1")
    (True, False)
    """
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    addresses = re.sub(r"^(dns:(//[^/]*/)?|ipv4:|ipv6:)", "", target).split(",")
    return all(is_loopback(re.sub(r":\d+$", "", address).strip("[]")) for address in addresses)

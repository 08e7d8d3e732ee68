"""Addresses as gRPC and URLs write them, and which of them stay on this machine."""

from __future__ import annotations

import ipaddress
import re


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

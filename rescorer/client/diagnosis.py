"""Find out why a server cannot be reached, by connecting to each of its addresses without gRPC.

gRPC reports only the last of several addresses, "Socket closed" where one end speaks TLS and the other does
not, and nothing at all if a deadline ends before a connection is made.
"""

from __future__ import annotations

import re
import socket
import ssl
import time

from rescorer.client.identity import Tls
from rescorer.errors import quote
from rescorer.protocol.addresses import format_address

MAX_ADDRESSES = 4
"""Number of addresses of a target that are tried."""
STEP_TIMEOUT_S = 0.5
"""Time allowed for each step, such as connecting to an address."""
REMEMBERED_S = 5.0
"""How long an explanation is valid, so that many failing calls cause few connections."""
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""Beginning of a connection: the preface and an empty SETTINGS frame (RFC 9113, section 3.4)."""
FRAME_HEADER_BYTES, SETTINGS_FRAME = 9, b"\x04"
HOST_PORT = re.compile(r"(?:dns:(?://[^/]*/)?|ipv4:|ipv6:)?(.+):(\d+)")
UNKNOWN_AUTHORITY_CODES, WRONG_NAME_CODES = (18, 19, 20, 21), (62, 63, 64)
"""X509_V_ERR_* codes of OpenSSL's X509_STORE_CTX_get_error."""

Address = tuple[str, int]


class Diagnosis:
    """Explains failed connections of one target.

    Args:
        target: target as in ``Client``.
        tls: TLS options of the client; None: plain text.
    """

    def __init__(self, target: str, tls: Tls | None) -> None:
        self._target, self._tls = target, tls
        self._explanation, self._valid_until_s = "", 0.0

    def explain(self) -> str:
        """Return what prevents connections and what to do; empty if a server can be reached.

        Blocks for a few seconds at most, usually for a few milliseconds.
        """
        if time.monotonic() >= self._valid_until_s:
            self._explanation = self._examine()
            self._valid_until_s = time.monotonic() + REMEMBERED_S
        return self._explanation

    def _examine(self) -> str:
        for part in self._target.split(","):
            if problem := describe_malformed(part.strip()):
                return problem
        unreachable: dict[str, list[str]] = {}  # addresses by reason
        problems = []
        addresses, unknown_hosts = find_addresses(self._target)
        for address in addresses[:MAX_ADDRESSES]:
            try:
                problem = self._examine_address(address)
            except OSError as error:
                unreachable.setdefault(describe_os_error(error), []).append(format_address(*address))
            else:
                if not problem:
                    return ""
                problems.append(f"the server at {format_address(*address)} {problem}")
        if problems:
            return problems[0]
        if not unreachable:
            return "; ".join(unknown_hosts)
        reasons = [f"{reason} by {' and '.join(addresses)}" for reason, addresses in unreachable.items()]
        return "; ".join([*reasons, *unknown_hosts]) + "; is the server running, at this address?"

    def _examine_address(self, address: Address) -> str:
        if self._tls is None:
            return examine_plain(address)
        host = HOST_PORT.fullmatch(self._target.split(",")[0].strip())
        return examine_tls(address, self._tls, self._tls.server_name or (host[1].strip("[]") if host else ""))


def describe_malformed(address: str) -> str:
    """Return what is wrong with an address that is a URL or has no port; empty if nothing is."""
    if address.lower().startswith(("http://", "https://")):
        return f"{address} is a URL; expected HOST:PORT"
    if address.startswith("unix") or HOST_PORT.fullmatch(address):
        return ""
    return f"{address} has no port, so gRPC tries 443; expected HOST:PORT"


def find_addresses(target: str) -> tuple[list[Address], list[str]]:
    """Look up the hosts of a target.

    Returns:
        IP addresses with their ports, none for Unix sockets, and what is wrong with each unknown host name.
    """
    addresses: dict[Address, None] = {}
    unknown_hosts = []
    for part in target.split(","):
        match = HOST_PORT.fullmatch(part.strip())
        if match is None:
            continue
        host = match[1].strip("[]")
        try:
            found = socket.getaddrinfo(host, int(match[2]), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            unknown_hosts.append(describe_unknown_host(host, error))
        else:
            addresses |= dict.fromkeys((str(name), int(port)) for *_, (name, port, *_) in found)
    return list(addresses), unknown_hosts


def describe_unknown_host(host: str, error: OSError | UnicodeError) -> str:
    """Return why the address of a host cannot be looked up, and what to do."""
    reason = getattr(error, "strerror", None) or "not a valid host name"
    return (
        f"the host name {quote(host)} cannot be looked up ({reason.lower()}); check its spelling, and that "
        "the DNS or /etc/hosts of this machine knows it"
    )


def examine_plain(address: Address) -> str:
    """Return why a server does not understand plain text; empty if it does.

    Raises:
        OSError: If no connection can be made.
    """
    with socket.create_connection(address, STEP_TIMEOUT_S) as connection:
        try:
            connection.sendall(HTTP2_PREFACE)
            answer = connection.recv(FRAME_HEADER_BYTES)
        except TimeoutError:
            return "accepts connections, but does not answer"
        except OSError:
            answer = b""
    if answer[3:4] == SETTINGS_FRAME:
        return ""
    if speaks_tls(address):
        return "speaks TLS, but this client sends plain text; set tls (--tls or --ca)"
    if answer.startswith(b"HTTP/1"):
        return "speaks HTTP/1, not gRPC; is this its metrics port?"
    return "does not speak gRPC"


def speaks_tls(address: Address) -> bool:
    """Whether a server answers a TLS handshake, successfully or not."""
    try:
        with (
            socket.create_connection(address, STEP_TIMEOUT_S) as connection,
            unverified_context().wrap_socket(connection),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def examine_tls(address: Address, tls: Tls, name: str) -> str:
    """Return why a TLS connection fails; empty if it does not.

    Args:
        name: name that the server's certificate must have.

    Raises:
        OSError: If no connection can be made.
    """
    context = ssl.create_default_context(cafile=tls.ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13's default, stricter than gRPC
    context.set_alpn_protocols(["h2"])
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    with socket.create_connection(address, STEP_TIMEOUT_S) as connection:
        try:
            with context.wrap_socket(connection, server_hostname=name) as encrypted:
                encrypted.sendall(HTTP2_PREFACE)
                answered = bool(encrypted.recv(FRAME_HEADER_BYTES))
        except TimeoutError:
            return "accepts connections, but answers no TLS handshake; is this its metrics port?"
        except ssl.SSLCertVerificationError as error:
            return describe_untrusted(error)
        except ssl.SSLError as error:
            return describe_tls_failure(error.reason or "")
        except OSError:
            answered = False
    if answered:
        return ""
    if tls.certificate is None:  # with TLS 1.3 it ends the connection only after the handshake
        return "ends TLS connections; it may require a client certificate (--certificate and --key)"
    return "ends TLS connections; it may not accept the client certificate"


def describe_untrusted(error: ssl.SSLCertVerificationError) -> str:
    """Return why a server's certificate is refused, and what to do."""
    reason = error.verify_message.rstrip(".")
    if error.verify_code in UNKNOWN_AUTHORITY_CODES:
        return f"has a certificate that is not trusted ({reason}); give its authority as ca (--ca)"
    if error.verify_code in WRONG_NAME_CODES:
        return f"has a certificate for another name ({reason}); set server_name (--server-name) to its name"
    return f"has a certificate that is not valid: {reason}"


def describe_tls_failure(reason: str) -> str:
    """Return what OpenSSL's reason for a failed handshake means, and what to do."""
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return "requires a client certificate (--certificate and --key)"
    if "ALERT" in reason:
        return f"refuses the TLS handshake ({reason.lower().replace('_', ' ')})"
    return "does not speak TLS, but this client does; leave out tls (--tls, --ca)"


def unverified_context() -> ssl.SSLContext:
    """Create a TLS context that accepts any certificate, to see whether a server speaks TLS at all."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def describe_os_error(error: OSError) -> str:
    """Return why no connection was made."""
    if isinstance(error, TimeoutError):
        return f"no connection was accepted within {STEP_TIMEOUT_S:g} s"
    return (error.strerror or str(error)).lower()

"""Call addresses where nothing, something else, or a server with other TLS options listens."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rescorer.client import NO_RETRY, AsyncClient, Client, Tls
from rescorer.client.connection import MAX_ADDRESSES, STEP_TIMEOUT_S, Diagnosis, find_addresses
from rescorer.errors import ConfigError, DeadlineExceeded, Unavailable
from tests.support.certificates import Authority
from tests.support.clients import make_list
from tests.support.servers import run_server


@contextmanager
def run_listener(answer: bytes | None) -> Iterator[str]:
    """Answer every connection with some bytes and close it; None: accept connections and stay silent."""

    def respond() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            accepted.append(connection)
            if answer is not None:
                connection.recv(4096)
                connection.sendall(answer)
                connection.close()

    accepted: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=respond)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in accepted:
            connection.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_server(ngram_bundle, authority):
    pair = authority.issue("service")
    with run_server(ngram_bundle, tls_certificate=pair.certificate, tls_key=pair.key) as server:
        yield server.target


@pytest.fixture(scope="module")
def plain_server(ngram_bundle):
    with run_server(ngram_bundle) as server:
        yield server.target


def call_error(target: str, **options) -> str:
    """Return the message of the error that a call raises."""
    with Client(target, retry=NO_RETRY, **options) as client, pytest.raises(Unavailable) as raised:
        client.rescore([make_list()], timeout_s=20)
    return str(raised.value)


def test_plain_text_call_of_a_tls_server_names_tls(tls_server):
    _, port = tls_server.split(":")
    for target in (tls_server, f"localhost:{port}"):  # ::1, where nobody listens, must not hide it
        assert f"the server at {tls_server} speaks TLS, but this client sends plain text" in call_error(
            target
        )


def test_tls_call_of_a_plain_server_says_so(plain_server, authority):
    message = call_error(plain_server, tls=Tls(authority.certificate))
    assert message.startswith(f"the server at {plain_server} does not speak TLS")


def test_untrusted_and_misnamed_certificates_name_the_option(tls_server, tmp_path):
    other = Authority(tmp_path, "other")
    assert "not trusted" in (message := call_error(tls_server, tls=Tls(other.certificate)))
    assert "(--ca)" in message
    assert "(--ca)" in call_error(tls_server, tls=Tls())


def test_wrong_name_in_the_certificate_names_the_option(tls_server, authority):
    message = call_error(tls_server, tls=Tls(authority.certificate, server_name="captions.example"))
    assert "captions.example" in message
    assert "--server-name" in message


def test_missing_client_certificate_is_named(ngram_bundle, authority):
    pair = authority.issue("mutual")
    settings = {"tls_certificate": pair.certificate, "tls_key": pair.key}
    with run_server(ngram_bundle, **settings, tls_client_ca=authority.certificate) as server:
        message = call_error(server.target, tls=Tls(authority.certificate))
        assert "may require a client certificate" in message
        trusted = Tls(authority.certificate, pair.certificate, pair.key)
        assert Diagnosis(server.target, trusted).explain() == ""


def test_dead_port_within_a_short_deadline_is_named(unused_port):
    target = f"127.0.0.1:{unused_port}"
    refused = f"^no answer before the deadline: connection refused by {target}"
    with Client(target) as client, pytest.raises(DeadlineExceeded, match=refused):
        client.rescore([make_list()], timeout_s=0.2)

    async def rescore() -> None:
        async with AsyncClient(target) as client:
            await client.rescore([make_list()], timeout_s=0.2)

    with pytest.raises(DeadlineExceeded, match=refused):
        asyncio.run(rescore())


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP/1, not gRPC"),
        (b"220 mail.example ESMTP\r\n", "does not speak gRPC"),
        (b"", "does not speak gRPC"),
        (None, "accepts connections, but does not answer"),
    ],
)
def test_other_servers_are_recognised(answer, part):
    with run_listener(answer) as target:
        assert part in Diagnosis(target, None).explain()


def test_silent_server_is_recognised_by_tls_clients(authority):
    """The metrics port waits for the end of a line, which a TLS handshake need not have."""
    with run_listener(None) as target:
        explanation = Diagnosis(target, Tls(authority.certificate)).explain()
    assert "answers no TLS handshake; is this its metrics port?" in explanation


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("127.0.0.1", "127.0.0.1 has no port, so gRPC tries 443; expected HOST:PORT"),
        ("http://127.0.0.1:50051", "http://127.0.0.1:50051 is a URL; expected HOST:PORT"),
    ],
)
def test_malformed_address_is_named(target, message):
    assert message in call_error(target)


@pytest.mark.parametrize("prefix", ["unix:", "unix://"])
def test_socket_without_a_server_is_named(prefix, tmp_path):
    with Client(f"{prefix}{tmp_path}/none", retry=NO_RETRY) as client, pytest.raises(Unavailable) as caught:
        client.list_models(timeout_s=10)
    assert f"the socket '{tmp_path}/none': no such file or directory" in str(caught.value)


def test_several_servers_are_reached_without_the_proxy(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Client(f"{server.target},{server.target}", retry=NO_RETRY) as client:
        assert client.list_models()


def test_proxy_is_named_and_never_used_for_this_machine(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
    explanation = Diagnosis("rescorer.example:50051", None).explain()
    assert "go through the proxy 'http://127.0.0.1:9' (variable http_proxy)" in explanation
    assert "set no_proxy=rescorer.example" in explanation
    with Client(server.target) as client:
        assert client.list_models(timeout_s=10)
    assert "proxy" not in Diagnosis("rescorer.example:50051,127.0.0.1:1", None).explain()
    monkeypatch.setenv("no_proxy", ".example")
    assert "proxy" not in Diagnosis("rescorer.example:50051", None).explain()


@pytest.mark.parametrize("target", ["unknown.invalid:1", "dns:///unknown.invalid:1"])
def test_unknown_host_is_named_with_what_to_check(target):
    message = call_error(target)
    assert message.startswith("the host name 'unknown.invalid' cannot be looked up (")
    assert "check its spelling, and that the DNS or /etc/hosts of this machine knows it" in message


def test_unknown_host_among_several_is_named():
    with pytest.raises(ConfigError, match=r"unknown.invalid:2: the host name 'unknown.invalid' cannot be"):
        Client("127.0.0.1:1,unknown.invalid:2")


def test_authority_file_without_certificate_is_refused(authority):
    key = authority.issue("service").key
    with pytest.raises(ConfigError, match="contains no certificate; expected those of authorities"):
        Client("127.0.0.1:1", tls=Tls(key))


def test_server_that_can_be_reached_needs_no_explanation(plain_server, tls_server, authority):
    assert Diagnosis(plain_server, None).explain() == ""
    assert Diagnosis(f"{plain_server},127.0.0.1:1", None).explain() == ""
    assert Diagnosis(tls_server, Tls(authority.certificate)).explain() == ""
    assert Diagnosis("unix-abstract:nowhere", None).explain() == ""  # its server cannot be asked


def test_explanations_are_bounded_in_time_and_remembered():
    with run_listener(None) as target:
        diagnosis = Diagnosis(",".join([target] * 20), None)
        began = time.monotonic()
        first = diagnosis.explain()
        assert time.monotonic() - began < MAX_ADDRESSES * STEP_TIMEOUT_S * 4
    assert first == diagnosis.explain()  # although nothing listens any more


@pytest.mark.parametrize(
    ("target", "addresses"),
    [
        ("127.0.0.1:1, 127.0.0.2:2", [("127.0.0.1", 1), ("127.0.0.2", 2)]),
        ("ipv6:[::1]:7", [("::1", 7)]),
        ("dns:///127.0.0.1:3", [("127.0.0.1", 3)]),
        ("unix:/tmp/socket", []),
        ("no-port", []),
        ("unknown.invalid:1", []),
        ("127.0.0.1:1,unknown.invalid:1", [("127.0.0.1", 1)]),
    ],
)
def test_finds_the_addresses_of_targets(target, addresses):
    assert find_addresses(target)[0] == addresses

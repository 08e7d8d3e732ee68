"""Tests of targets, tokens and the retry policy, and of the policy in the documentation."""

from __future__ import annotations

import json
import re

import grpc
import pytest

from rescorer import ConfigError, LimitExceeded
from rescorer.client import Client, ConnectionOptions, Retry
from rescorer.client.connection import describe_unready, resolve, service_config
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:1", ("127.0.0.1:1", "")),
        ("rescorer.example:1", ("rescorer.example:1", "")),
        ("dns:///a:1", ("dns:///a:1", "")),
        ("ipv4:1.2.3.4:1,1.2.3.4:2", ("ipv4:1.2.3.4:1,1.2.3.4:2", "")),
        ("127.0.0.1:1,127.0.0.2:2", ("ipv4:127.0.0.1:1,127.0.0.2:2", "127.0.0.1")),
        ("localhost:1, 127.0.0.2:2,", ("ipv4:127.0.0.1:1,127.0.0.2:2", "localhost")),
        ("[::1]:1,[::1]:2", ("ipv6:[::1]:1,[::1]:2", "::1")),
    ],
)
def test_converts_targets_for_grpc(target, expected):
    assert resolve(target) == expected


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("", "the target is empty"),
        (" , ", "the target is empty"),
        ("127.0.0.1:99999", "expected a port from 1 to 65535"),
        ("dns:///rescorer.example:0", "expected a port from 1 to 65535"),
        ("127.0.0.1:1,127.0.0.1:65536", "expected a port from 1 to 65535"),
        ("127.0.0.1:1,127.0.0.1", "host:port"),
        ("127.0.0.1:1,[::1]:1", "one IP version"),
        ("127.0.0.1:1," + "a" * 64 + ":1", "a:1: "),
    ],
)
def test_rejects_invalid_targets(target, part):
    with pytest.raises(ConfigError, match=part.replace("[", r"\[")):
        Client(target)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ("ipv4:1.2.3.4:1: Failed to connect to remote host: Connection refused", "connection refused"),
        ("UNKNOWN: ipv6:%5B::1%5D:1: connect: Connection refused (111)", "connection refused"),
        ("UNAVAILABLE: ipv4:1.2.3.4:1: Failed parsing HTTP/2 (a, b)", "Failed parsing HTTP/2 (a, b)"),
        ("ipv4:1.2.3.4:1: backend unhealthy", "NOT_SERVING, still loading its models or stopping"),
        ("unheard of", "unheard of"),
    ],
)
def test_extracts_the_reason_from_error_messages_of_grpc(details, reason):
    def describe(details: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> str:
        return describe_unready(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details))

    assert describe(f"connections to all backends failing; last error: {details}") == reason
    assert describe("", grpc.StatusCode.DEADLINE_EXCEEDED) == "no answer"
    lookup_error = "hostname lookup error:address lookup failed for no.example:1: Domain name not found"
    assert describe(f"errors resolving no.example:1: [field:{lookup_error}]") == "Domain name not found"


def test_token_without_tls_is_only_sent_to_this_machine():
    Client("127.0.0.1:1,localhost:2", token="secret").close()
    with pytest.raises(ConfigError, match="plain text"):
        Client("127.0.0.1:1,10.0.0.1:1", token="secret")


@pytest.mark.parametrize(
    ("token", "error", "message"),
    [
        ("x" * 20_000, LimitExceeded, "token: 20,000 bytes; at most 7,168 can be sent"),
        ("secret\n", ConfigError, "token: expected printable ASCII characters.*line end"),
        ("geheim é", ConfigError, "token: expected printable ASCII"),
    ],
)
def test_tokens_that_cannot_be_sent_are_refused(token, error, message):
    with pytest.raises(error, match=message) as caught:
        Client("127.0.0.1:1", token=token)
    assert "geheim" not in str(caught.value)
    with Client("127.0.0.1:1", token=lambda: token) as client, pytest.raises(error, match=message):
        client.list_models(timeout_s=1)


@pytest.mark.parametrize("fields", [{"attempts": 0}, {"attempts": 6}, {"first_s": 0}])
def test_rejects_retry_policies_that_grpc_does_not_support(fields):
    with pytest.raises(ConfigError, match="retry"):
        Retry(**fields)


def test_documented_policy_is_the_one_in_use():
    documented = (REPOSITORY / "docs" / "how-to" / "other-languages.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```json\n(.*?)```", documented, re.S)
    assert json.loads(block) == json.loads(json.dumps(service_config(ConnectionOptions())))

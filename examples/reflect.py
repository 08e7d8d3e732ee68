"""Rescore a list with server reflection only, as a generic client in any language could.

    pip install grpcio-reflection
    rescorer serve --bundle models/starter/1 &
    python examples/reflect.py 127.0.0.1:50051
    python examples/reflect.py captions.example.org:443 --ca ca.pem --token "$TOKEN"

Imports nothing from this project: the server describes its protocol, and messages are dictionaries.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read at import; our messages say what gRPC's log would
import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

TOKEN_VARIABLE = "RESCORER_TOKEN"
LOCAL = ("127.0.0.1:", "localhost:", "[::1]:", "unix:")
SERVICE = "rescorer.v1.RescorerService"
REQUEST = {
    "lists": [
        {
            "id": "u1",
            "hypotheses": [{"text": "the see was calm"}, {"text": "the sea was calm"}],
            "streams": [
                {
                    "name": "acoustic",
                    "base": "LOG_BASE_E",
                    "sign": "SCORE_SIGN_LOG_PROB",
                    "values": [-9.0, -9.5],
                }
            ],
        }
    ]
}


class SendToken(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Send a bearer token with every call, those of reflection included."""

    def __init__(self, token: str) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),)

    def intercept_unary_unary(self, continuation: Callable, details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=self._metadata), request)

    intercept_stream_stream = intercept_unary_unary


def call(channel: grpc.Channel, service: str, method: str, request: dict[str, Any]) -> dict[str, Any]:
    """Send a unary call whose message types are fetched from the server."""
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    descriptor = pool.FindServiceByName(service).FindMethodByName(method)
    request_class = GetMessageClass(descriptor.input_type)
    response_class = GetMessageClass(descriptor.output_type)
    send = channel.unary_unary(
        f"/{service}/{method}", request_class.SerializeToString, response_class.FromString
    )
    response = send(ParseDict(request, request_class(), descriptor_pool=pool), timeout=30)
    return MessageToDict(response, preserving_proto_field_name=True, descriptor_pool=pool)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="?", default="127.0.0.1:50051", help="host:port (%(default)s)")
    parser.add_argument("--tls", action="store_true", help="use TLS; implied by --ca")
    parser.add_argument("--ca", type=Path, help="PEM file of the authority that signed its certificate")
    parser.add_argument("--token", default=os.environ.get(TOKEN_VARIABLE, ""), help=f"or ${TOKEN_VARIABLE}")
    return parser.parse_args()


def open_channel(options: argparse.Namespace) -> grpc.Channel:
    if options.tls or options.ca:
        authorities = options.ca.read_bytes() if options.ca else None
        channel = grpc.secure_channel(options.target, grpc.ssl_channel_credentials(authorities))
    elif options.token and not options.target.startswith(LOCAL):
        sys.exit("the token would be sent in plain text: add --tls or --ca")
    else:
        channel = grpc.insecure_channel(options.target)
    return grpc.intercept_channel(channel, SendToken(options.token)) if options.token else channel


def explain_unavailable(options: argparse.Namespace) -> str:
    """Say what a TLS handshake without gRPC shows, since gRPC only says that the socket was closed."""
    host, _, port = options.target.rpartition(":")
    context = ssl.create_default_context(cafile=options.ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13's default, stricter than gRPC
    uses_tls = context.check_hostname = bool(options.tls or options.ca)
    context.verify_mode = ssl.CERT_REQUIRED if uses_tls else ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), 2) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
        return "" if uses_tls else "the server speaks TLS: add --tls or --ca"
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not trusted ({error.verify_message}): is --ca its authority?"
    except ssl.SSLError:
        return "the server does not speak TLS: leave out --tls and --ca" if uses_tls else ""
    except OSError as error:
        return (error.strerror or str(error)).lower()


def main() -> None:
    options = read_options()
    try:
        with open_channel(options) as channel:
            response = call(channel, SERVICE, "Rescore", REQUEST)
    except OSError as error:
        sys.exit(f"{options.ca}: {error.strerror}")
    except grpc.RpcError as error:
        reason = explain_unavailable(options) if error.code() is grpc.StatusCode.UNAVAILABLE else ""
        sys.exit(f"{options.target}: {error.code().name}: {reason or error.details()}")
    for hypothesis in response["lists"][0]["hypotheses"]:
        rank, original_rank = hypothesis["rank"], hypothesis["original_rank"]
        print(f"{rank} (was {original_rank})  {hypothesis['total']:8.3f}  {hypothesis['text']}")


if __name__ == "__main__":
    main()

"""Rescore a list with server reflection only, as a generic client in any language could.

    pip install grpcio-reflection
    rescorer serve --bundle models/starter/1 &
    python examples/reflect.py 127.0.0.1:50051

Imports nothing from this project: the server describes its protocol, and messages are dictionaries.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

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


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    with grpc.insecure_channel(target) as channel:
        response = call(channel, SERVICE, "Rescore", REQUEST)
    for hypothesis in response["lists"][0]["hypotheses"]:
        rank, original_rank = hypothesis["rank"], hypothesis["original_rank"]
        print(f"{rank} (was {original_rank})  {hypothesis['total']:8.3f}  {hypothesis['text']}")


if __name__ == "__main__":
    main()

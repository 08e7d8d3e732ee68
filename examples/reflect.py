"""Re-rank a list by reflection alone, as a generic client in any language does: nothing of ours is imported.

    pip install grpcio-reflection
    rescorer serve --bundle models/starter/1 &
    python examples/reflect.py 127.0.0.1:50051

The server tells its own protocol; requests and answers are dictionaries.
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
    """One unary call, its messages known from the server."""
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    described = pool.FindServiceByName(service).FindMethodByName(method)
    make, read = GetMessageClass(described.input_type), GetMessageClass(described.output_type)
    send = channel.unary_unary(f"/{service}/{method}", make.SerializeToString, read.FromString)
    answer = send(ParseDict(request, make(), descriptor_pool=pool), timeout=30)
    return MessageToDict(answer, preserving_proto_field_name=True, descriptor_pool=pool)


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    with grpc.insecure_channel(target) as channel:
        answer = call(channel, SERVICE, "Rescore", REQUEST)
    for each in answer["lists"][0]["hypotheses"]:
        print(f"{each['rank']} (was {each['original_rank']})  {each['total']:8.3f}  {each['text']}")


if __name__ == "__main__":
    main()

"""Build requests for bare gRPC stubs, as clients in other languages would, and check errors of calls."""

from __future__ import annotations

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_status import rpc_status

from rescorer.protocol.v1 import rescorer_pb2 as pb

LIMITS = {
    "max_lists": 4,
    "max_hypotheses": 5,
    "max_words": 6,
    "max_previous": 50,
    "max_in_flight_lists": 8,
    "max_message_bytes": 65536,
}
"""Settings of a server with small limits."""
SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


def make_list_message(list_id="u1", texts=("the cat", "the mat"), **stream) -> pb.NBestList:
    values = [-1.0 - 0.1 * i for i in range(len(texts))]
    fields = {
        "name": "acoustic",
        "base": pb.LOG_BASE_E,
        "sign": pb.SCORE_SIGN_LOG_PROB,
        "values": values,
    } | stream
    return pb.NBestList(
        id=list_id,
        hypotheses=[pb.Hypothesis(text=text) for text in texts],
        streams=[pb.ScoreStream(**fields)],
    )


def expect_error(call, *args, **kwargs) -> tuple[grpc.StatusCode, str, str, str]:
    """Expect a call to fail; return the code, message, reason and field of its status."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call(*args, **kwargs))
    status = rpc_status.from_call(caught.value)
    reason = field = ""
    for detail in status.details if status else ():
        info, bad = ErrorInfo(), BadRequest()
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(bad):
            field = bad.field_violations[0].field
    return caught.value.code(), caught.value.details(), reason, field

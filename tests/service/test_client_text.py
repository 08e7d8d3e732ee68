"""Text from clients is cut, and cannot forge log lines, wherever it is quoted."""

from __future__ import annotations

import io
import json
import logging
from contextlib import redirect_stderr

import grpc
import pytest
import structlog
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from rescorer.protocol.v1 import models_pb2
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.logs import MAX_TEXTS_CHARS, log_to_stderr
from tests.support.servers import run_server
from tests.support.stubs import make_list_message

LONG = "x" * 1_000_000
HOSTILE = "\n2026-01-01 [info] forged\r\x1b[2J\x9b31m\u2028\u202e"


@pytest.fixture(params=["json", "console"])
def log(request):
    """A log in each format: the function returns its text."""
    handlers, level = logging.root.handlers[:], logging.root.level
    stream = io.StringIO()
    with redirect_stderr(stream):
        log_to_stderr(request.param)
    yield stream.getvalue
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def make_mistaken_requests(text: str) -> dict[str, pb.RescoreRequest]:
    """Requests with a text in every place that a message may quote."""
    valid = make_list_message()
    named, streamed, repeated = pb.NBestList(), pb.NBestList(), pb.NBestList()
    for message in (named, streamed, repeated):
        message.CopyFrom(valid)
    streamed.streams[0].ClearField("base")
    named.id = text
    named.streams[0].values[0] = float("nan")
    streamed.streams[0].name = text
    repeated.streams.add().CopyFrom(valid.streams[0])
    for stream in repeated.streams:
        stream.name = text
    return {
        "model": pb.RescoreRequest(lists=[valid], model=text),
        "weights_name": pb.RescoreRequest(lists=[valid], weights_name=text),
        "weights.name": pb.RescoreRequest(lists=[valid], weights=pb.Weights(name=text, streams={text: 1.0})),
        "weights.streams": pb.RescoreRequest(lists=[valid], weights=pb.Weights(streams={text: float("inf")})),
        "mixture": pb.RescoreRequest(lists=[valid], weights=pb.Weights(mixture={text: 1.0})),
        "lm": pb.RescoreRequest(lists=[valid], weights=pb.Weights(lm={text: 1.0})),
        "list id": pb.RescoreRequest(lists=[named]),
        "stream name": pb.RescoreRequest(lists=[streamed]),
        "repeated stream": pb.RescoreRequest(lists=[repeated]),
    }


def get_status(stub: RescorerServiceStub, request: pb.RescoreRequest, request_id: str) -> Status:
    """Return the status of the call or, if that is OK, of its only list."""
    try:
        response = stub.Rescore(request, metadata=(("x-request-id", request_id),))
    except grpc.RpcError as error:
        assert sum(len(value) for _, value in error.trailing_metadata()) < 8192  # noqa: PT017
        return rpc_status.from_call(error)
    return response.lists[0].status


@pytest.mark.parametrize("text", [LONG, HOSTILE])
def test_cuts_client_text_in_statuses_and_log_lines(ngram_bundle, log, text):
    options = [("grpc.max_send_message_length", -1)]
    with (
        run_server(ngram_bundle) as server,
        grpc.insecure_channel(server.target, options=options) as channel,
    ):
        stub = RescorerServiceStub(channel)
        for name, request in make_mistaken_requests(text).items():
            status = get_status(stub, request, name.replace(" ", "-"))
            assert status.code in (
                grpc.StatusCode.INVALID_ARGUMENT.value[0],
                grpc.StatusCode.NOT_FOUND.value[0],
            )
            assert 0 < len(status.message) <= 500
            assert len(str(status.details)) < 8_000
        with pytest.raises(grpc.RpcError) as caught:
            ModelServiceStub(channel).GetModel(models_pb2.GetModelRequest(model=text))
        assert len(caught.value.details()) <= 200
    lines = log().split("\n")
    assert max(map(len, lines)) < 8_000
    assert len(log()) < 30_000
    assert not any(line.startswith("2026-01-01 [info] forged") for line in lines)
    assert not set("\r\x1b\x9b\u2028\u202e") & set(log())


def test_bounds_every_value_of_a_log_line(log):
    event = {
        "many": [LONG] * 100,
        "mapping": {LONG: LONG, HOSTILE: [HOSTILE] * 10_000},
        "object": Exception(LONG),
    }
    structlog.get_logger().info("event", text=LONG, **event)
    logging.getLogger("grpc").error("%s %s", LONG, HOSTILE)
    try:
        raise RuntimeError(LONG + HOSTILE)
    except RuntimeError as error:
        structlog.get_logger().error("failed", exc_info=error)
    assert "…" in log()
    assert len(log()) < 60_000
    assert not set("\r\x1b\x9b\u2028\u202e") & set(log())
    assert "RuntimeError" in log()
    assert "forged" in log()
    assert not any(line.startswith("2026-01-01 [info] forged") for line in log().split("\n"))


def test_texts_that_the_operator_asks_for_are_whole_up_to_a_bound(ngram_bundle, log):
    short, whole = ["the cat " * 100] * 50, "the cat " * 110
    with (
        run_server(ngram_bundle, log_texts=True) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        stub = RescorerServiceStub(channel)
        stub.ScoreText(pb.ScoreTextRequest(texts=[whole, *short]))
        assert whole in log()
        stub.ScoreText(pb.ScoreTextRequest(texts=short * 15))
    (line,) = (line for line in log().split("\n") if " more" in line)
    assert MAX_TEXTS_CHARS * 0.9 < len(line) < MAX_TEXTS_CHARS * 1.1


def test_json_lines_keep_numbers_and_structure(log):
    structlog.get_logger().info("event", number=1.5, flag=True, nested={"a": [1, None]})
    line = log().splitlines()[-1]
    if line.startswith("{"):
        event = json.loads(line)
        assert (event["number"], event["flag"], event["nested"]) == (1.5, True, {"a": [1, None]})

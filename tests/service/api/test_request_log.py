"""The log of a server: one line a call, its request's id in every line, and never a text unless asked."""

from __future__ import annotations

import io
import json
import logging
from contextlib import redirect_stderr

import grpc
import pytest
import structlog
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.observability.logs import log_to_stderr
from tests.support.servers import run_server, wait_until
from tests.support.stubs import make_list_message

SECRET = "thewordsnobodymaysee"


@pytest.fixture
def stderr():
    handlers, level = logging.root.handlers[:], logging.root.level
    yield io.StringIO()
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def log(stderr):
    with redirect_stderr(stderr):
        log_to_stderr("json")
    return lambda: [json.loads(line) for line in stderr.getvalue().splitlines()]


@pytest.fixture
def stub(bundle, log):
    with run_server(bundle) as server, grpc.insecure_channel(server.target) as channel:
        yield RescorerServiceStub(channel)


def line_of(log, event: str) -> dict:
    found: list[dict] = []
    wait_until(lambda: bool(found.extend(each for each in log() if each["event"] == event) or found))
    return found[-1]


def test_a_call_ends_in_one_line_with_code_lists_edges_and_time_by_phase(stub, log):
    response, call = stub.Rescore.with_call(
        pb.RescoreRequest(lists=[make_list_message()] * 2), metadata=(("x-request-id", "mine-1"),)
    )
    assert dict(call.trailing_metadata())["x-request-id"] == "mine-1"
    line = line_of(log, "call answered")
    assert (line["code"], line["lists"], line["edges"]) == ("OK", 2, 5)
    assert (line["method"], line["model"], line["request_id"]) == ("Rescore", "tiny/1", "mine-1")
    phases = set(line["phase_ms"])
    assert {"parse", "text", "queue", "trie", "ngram", "network", "output", "rank", "write"} <= phases
    assert sum(line["phase_ms"].values()) - line["phase_ms"]["queue"] <= line["ms"] + 1
    told = dict(response.timing.phase_ms)
    assert set(told) <= phases
    assert told["network"] == pytest.approx(line["phase_ms"]["network"], abs=1e-3)
    assert response.timing.compute_ms == pytest.approx(
        sum(told[phase] for phase in ("trie", "ngram", "network", "output")), abs=1.0
    )


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "new\u00e9"])
def test_an_id_that_is_none_is_replaced_by_a_new_one(stub, log, sent):
    metadata = (("x-request-id", sent),) if sent.isascii() else (("x-request-id-bin", sent.encode()),)
    _, call = stub.Rescore.with_call(pb.RescoreRequest(lists=[make_list_message()]), metadata=metadata)
    made = dict(call.trailing_metadata())["x-request-id"]
    assert len(made) == 32
    assert line_of(log, "call answered")["request_id"] == made


def test_lists_that_failed_are_counted_though_their_call_did_not(stub, log):
    stub.Rescore(
        pb.RescoreRequest(
            lists=[make_list_message(), make_list_message(texts=["the cat"], values=[float("nan")])]
        )
    )
    line = line_of(log, "call answered")
    assert (line["code"], line["lists"], line["failed_lists"]) == ("OK", 2, 1)


def test_a_fault_tells_the_id_in_its_details_and_all_its_lines_have_it(stub, log):
    poisoned = pb.RescoreRequest(lists=[make_list_message(texts=["poison"])])
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(poisoned, metadata=(("x-request-id", "mine-2"),))
    (info,) = [each for each in rpc_status.from_call(caught.value).details if each.Is(ErrorInfo.DESCRIPTOR)]
    told = ErrorInfo.FromString(info.value)
    assert told.metadata["request_id"] == "mine-2"
    assert dict(caught.value.trailing_metadata())["x-request-id"] == "mine-2"
    line = line_of(log, "call failed")
    assert (line["request_id"], line["reason"], line["level"]) == ("mine-2", "INTERNAL", "error")
    assert "Traceback" in line["exception"]
    assert line_of(log, "a batch failed; its lists are scored one by one")["requests"] == ["mine-2"]


@pytest.mark.parametrize("asked", [False, True])
def test_texts_are_in_the_log_only_where_that_is_asked_for(bundle, log, stderr, asked):
    good, bad = make_list_message(texts=[SECRET]), make_list_message(texts=[SECRET], values=[float("nan")])
    with (
        run_server(bundle, log_texts=asked) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        stub = RescorerServiceStub(channel)
        stub.Rescore(pb.RescoreRequest(lists=[good, bad]))
        stub.ScoreText(pb.ScoreTextRequest(texts=[SECRET], context=SECRET))
        with pytest.raises(grpc.RpcError):
            stub.Rescore(pb.RescoreRequest(lists=[make_list_message(texts=[f"{SECRET} poison"])]))
        line_of(log, "call failed")
    assert (SECRET in stderr.getvalue()) == asked
    if asked:
        assert line_of(log, "texts")["request_id"]


def test_other_packages_write_lines_of_the_same_form(log):
    logging.getLogger("grpc._cython").error("something %s", "odd")
    (line,) = log()
    assert (line["event"], line["logger"], line["level"]) == ("something odd", "grpc._cython", "error")


def test_a_call_that_left_as_it_was_answered_is_no_error(log):
    try:
        raise ValueError("Failed grpc_call_start_batch")
    except ValueError:  # as gRPC tells of it
        told = "ExecuteBatchError raised in core by servicer method [/rescorer.v1.RescorerService/Rescore]"
        logging.getLogger("grpc._cython.cygrpc").exception(told)
    (line,) = log()
    assert (line["event"], line["level"]) == ("a call is gone before its answer", "warning")
    assert "exception" not in line


def test_lines_for_people_quote_what_came_from_outside(stderr):
    with redirect_stderr(stderr):
        log_to_stderr("console")
    structlog.get_logger().info("call refused", error="a\nfake line \x1b[2J")
    assert len(stderr.getvalue().splitlines()) == 1
    assert "\x1b" not in stderr.getvalue()

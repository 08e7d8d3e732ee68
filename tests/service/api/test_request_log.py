"""The log of a server: one line per call, request ids, and texts only if configured."""

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
from rescorer.service.logs import log_to_stderr
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


def wait_for_line(log, event: str) -> dict:
    """Wait for a line with this event, and return the last one."""
    lines: list[dict] = []
    wait_until(lambda: bool(lines.extend(line for line in log() if line["event"] == event) or lines))
    return lines[-1]


def test_warns_once_about_weights_that_were_never_tuned_for_such_scores(stub, log):
    own = pb.Weights(name="own", streams={"acoustic": 1.0})
    for request in (pb.RescoreRequest(weights=own), pb.RescoreRequest(), pb.RescoreRequest()):
        request.lists.extend([make_list_message()] * 6)
        stub.Rescore(request)
    line = wait_for_line(log, "weights were never tuned for such scores")
    assert (line["level"], line["weights"], line["streams"]) == ("warning", "default", ["acoustic"])
    assert "rescorer tune" in line["advice"]
    assert sum(line["event"].startswith("weights were never") for line in log()) == 1


def test_logs_code_lists_edges_and_time_by_phase_of_a_call(stub, log):
    response, call = stub.Rescore.with_call(
        pb.RescoreRequest(lists=[make_list_message()] * 2), metadata=(("x-request-id", "mine-1"),)
    )
    assert dict(call.trailing_metadata())["x-request-id"] == "mine-1"
    line = wait_for_line(log, "call answered")
    assert (line["code"], line["lists"], line["edges"]) == ("OK", 2, 5)
    assert (line["method"], line["model"], line["request_id"]) == ("Rescore", "tiny/1", "mine-1")
    phases = set(line["phase_ms"])
    assert {"parse", "text", "queue", "trie", "ngram", "network", "output", "rank", "write"} <= phases
    assert sum(line["phase_ms"].values()) - line["phase_ms"]["queue"] <= line["ms"] + 1
    phase_ms = dict(response.timing.phase_ms)
    assert set(phase_ms) <= phases
    assert phase_ms["network"] == pytest.approx(line["phase_ms"]["network"], abs=1e-3)
    # The worker's time holds its phases, and a busy machine may take any time between them.
    computed_ms = sum(phase_ms[phase] for phase in ("trie", "ngram", "network", "output"))
    assert computed_ms - 1e-3 <= response.timing.compute_ms <= line["ms"] + 1e-3


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "new\u00e9"])
def test_replaces_an_invalid_request_id(stub, log, sent):
    metadata = (("x-request-id", sent),) if sent.isascii() else (("x-request-id-bin", sent.encode()),)
    _, call = stub.Rescore.with_call(pb.RescoreRequest(lists=[make_list_message()]), metadata=metadata)
    request_id = dict(call.trailing_metadata())["x-request-id"]
    assert len(request_id) == 32
    assert wait_for_line(log, "call answered")["request_id"] == request_id


def test_counts_failed_lists_of_successful_calls(stub, log):
    stub.Rescore(
        pb.RescoreRequest(
            lists=[make_list_message(), make_list_message(texts=["the cat"], values=[float("nan")])]
        )
    )
    line = wait_for_line(log, "call answered")
    assert (line["code"], line["lists"], line["failed_lists"]) == ("OK", 2, 1)


def test_request_id_is_in_the_status_and_all_log_lines_of_an_error(stub, log):
    poisoned = pb.RescoreRequest(lists=[make_list_message(texts=["poison"])])
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(poisoned, metadata=(("x-request-id", "mine-2"),))
    details = rpc_status.from_call(caught.value).details
    (info,) = [detail for detail in details if detail.Is(ErrorInfo.DESCRIPTOR)]
    error_info = ErrorInfo.FromString(info.value)
    assert error_info.metadata["request_id"] == "mine-2"
    assert dict(caught.value.trailing_metadata())["x-request-id"] == "mine-2"
    line = wait_for_line(log, "call failed")
    assert (line["request_id"], line["reason"], line["level"]) == ("mine-2", "INTERNAL", "error")
    assert "Traceback" in line["exception"]
    assert wait_for_line(log, "a batch failed; its lists are scored one by one")["requests"] == ["mine-2"]


@pytest.mark.parametrize("log_texts", [False, True])
def test_logs_texts_only_if_configured(bundle, log, stderr, log_texts):
    valid, invalid = (
        make_list_message(texts=[SECRET]),
        make_list_message(texts=[SECRET], values=[float("nan")]),
    )
    with (
        run_server(bundle, log_texts=log_texts) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        stub = RescorerServiceStub(channel)
        stub.Rescore(pb.RescoreRequest(lists=[valid, invalid]))
        stub.ScoreText(pb.ScoreTextRequest(texts=[SECRET], context=SECRET))
        with pytest.raises(grpc.RpcError):
            stub.Rescore(pb.RescoreRequest(lists=[make_list_message(texts=[f"{SECRET} poison"])]))
        wait_for_line(log, "call failed")
    assert (SECRET in stderr.getvalue()) == log_texts
    if log_texts:
        assert wait_for_line(log, "texts")["request_id"]


def test_formats_lines_of_other_packages_alike(log):
    logging.getLogger("grpc._cython").error("something %s", "odd")
    (line,) = log()
    assert (line["event"], line["logger"], line["level"]) == ("something odd", "grpc._cython", "error")


def test_call_that_disconnects_while_being_answered_is_a_warning(log):
    try:
        raise ValueError("Failed grpc_call_start_batch")
    except ValueError:  # like gRPC's own line
        message = "ExecuteBatchError raised in core by servicer method [/rescorer.v1.RescorerService/Rescore]"
        logging.getLogger("grpc._cython.cygrpc").exception(message)
    (line,) = log()
    assert (line["event"], line["level"]) == ("a call is gone before its answer", "warning")
    assert "exception" not in line


def test_console_lines_escape_control_characters(stderr):
    with redirect_stderr(stderr):
        log_to_stderr("console")
    structlog.get_logger().info("call refused", error="a\nfake line \x1b[2J")
    assert len(stderr.getvalue().splitlines()) == 1
    assert "\x1b" not in stderr.getvalue()

"""Spans of calls: a child per phase, continued traces of callers, and no spans unless configured."""

from __future__ import annotations

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rescorer import ConfigError
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service import tracing
from rescorer.service.settings import load_settings
from rescorer.service.tracing import Tracing
from tests.support.servers import run_server, wait_until
from tests.support.stubs import expect_error, make_list_message

pytestmark = pytest.mark.slow

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
REQUEST = pb.RescoreRequest(lists=[make_list_message()])


@pytest.fixture(scope="module")
def exporter():
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def stub(bundle, exporter):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with (
        run_server(bundle, tracing=Tracing(provider)) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        yield RescorerServiceStub(channel)


def take_spans(exporter, n_calls: int = 1):
    """Wait for the spans of the last calls; return those of the calls and those of their children."""

    def call_spans():
        return [span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER]

    wait_until(lambda: len(call_spans()) == n_calls)
    calls = call_spans()
    children = [span for span in exporter.get_finished_spans() if span.kind is not SpanKind.SERVER]
    exporter.clear()
    return calls, children


def test_a_call_continues_the_trace_of_its_caller_with_a_child_per_phase(stub, exporter):
    metadata = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("x-request-id", "r1"))
    stub.Rescore(REQUEST, metadata=metadata)
    (call,), children = take_spans(exporter)
    assert call.name == "rescorer.v1.RescorerService/Rescore"
    assert f"{call.context.trace_id:032x}" == TRACE
    assert f"{call.parent.span_id:016x}" == PARENT
    assert call.attributes["rescorer.request_id"] == "r1"
    assert (call.attributes["rpc.grpc.status_code"], call.attributes["rescorer.lists"]) == (0, 1)
    phases = {"parse", "text", "queue", "trie", "ngram", "network", "output", "rank", "write"}
    assert phases <= {span.name for span in children}
    for span in children:
        assert span.parent.span_id == call.context.span_id
        # Phases are measured with another clock than the start and end of the call.
        assert call.start_time - 1e6 <= span.start_time <= span.end_time <= call.end_time + 1e6


def test_phases_of_every_message_of_a_stream_are_recorded(stub, exporter):
    list(stub.RescoreStream(iter([pb.RescoreStreamRequest(lists=[make_list_message()])] * 3)))
    _, children = take_spans(exporter)
    assert [span.name for span in children].count("ngram") == 3


def test_only_errors_of_the_server_set_the_error_status(stub, exporter):
    expect_error(stub.Rescore, pb.RescoreRequest(lists=[make_list_message(texts=["poison"])]))
    expect_error(stub.Rescore, pb.RescoreRequest(lists=[make_list_message()], weights_name="none"))
    (server_error, caller_error), _ = take_spans(exporter, 2)
    assert server_error.status.status_code == StatusCode.ERROR
    assert server_error.attributes["rescorer.reason"] == "INTERNAL"
    assert caller_error.status.status_code == StatusCode.UNSET
    assert caller_error.attributes["rpc.grpc.status_code"] == 3


def test_ignores_unsampled_and_invalid_traces(stub, exporter):
    stub.Rescore(REQUEST, metadata=(("traceparent", f"00-{TRACE}-{PARENT}-00"),))
    stub.Rescore(REQUEST, metadata=(("traceparent", "nonsense"), ("tracestate", ",=;,")))
    (call,), _ = take_spans(exporter)
    assert call.parent is None


def test_traces_only_if_an_endpoint_is_set(bundle, monkeypatch):
    with run_server(bundle, load=False) as server:
        assert server.server.tracing is None
    monkeypatch.setattr(tracing, "REQUIRED_MODULES", ("opentelemetry_is.not_installed",))
    with pytest.raises(ConfigError, match=r"expected the packages of rescorer\[tracing\]"):
        load_settings(bundle=bundle, trace_endpoint="http://127.0.0.1:4317")
    with pytest.raises(ConfigError, match="trace_endpoint"):
        load_settings(bundle=bundle, trace_endpoint="127.0.0.1:4317")

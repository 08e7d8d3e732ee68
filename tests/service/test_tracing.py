"""Spans of calls: a child for each phase, the caller's trace continued, nothing where nobody asked."""

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
from rescorer.service.observability import tracing
from rescorer.service.observability.tracing import Tracing
from rescorer.service.preflight import load_settings
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


def spans_of(exporter, calls: int = 1):
    """Of so many calls that have just been made: theirs, and their children's."""

    def roots():
        return [each for each in exporter.get_finished_spans() if each.kind is SpanKind.SERVER]

    wait_until(lambda: len(roots()) == calls)
    own = roots()
    children = [each for each in exporter.get_finished_spans() if each.kind is not SpanKind.SERVER]
    exporter.clear()
    return own, children


def test_a_call_continues_its_callers_trace_and_has_a_child_for_each_phase(stub, exporter):
    metadata = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("x-request-id", "r1"))
    stub.Rescore(REQUEST, metadata=metadata)
    (call,), children = spans_of(exporter)
    assert call.name == "rescorer.v1.RescorerService/Rescore"
    assert f"{call.context.trace_id:032x}" == TRACE
    assert f"{call.parent.span_id:016x}" == PARENT
    assert call.attributes["rescorer.request_id"] == "r1"
    assert (call.attributes["rpc.grpc.status_code"], call.attributes["rescorer.lists"]) == (0, 1)
    phases = {"parse", "text", "queue", "trie", "ngram", "network", "output", "rank", "write"}
    assert phases <= {each.name for each in children}
    for each in children:
        assert each.parent.span_id == call.context.span_id
        # Phases are measured by another clock than the call's own begin and end.
        assert call.start_time - 1e6 <= each.start_time <= each.end_time <= call.end_time + 1e6


def test_each_message_of_a_stream_adds_its_phases(stub, exporter):
    list(stub.RescoreStream(iter([pb.RescoreStreamRequest(lists=[make_list_message()])] * 3)))
    _, children = spans_of(exporter)
    assert [each.name for each in children].count("ngram") == 3


def test_faults_of_the_server_are_errors_and_those_of_callers_are_not(stub, exporter):
    expect_error(stub.Rescore, pb.RescoreRequest(lists=[make_list_message(texts=["poison"])]))
    expect_error(stub.Rescore, pb.RescoreRequest(lists=[make_list_message()], weights_name="none"))
    (ours, theirs), _ = spans_of(exporter, 2)
    assert (ours.status.status_code, ours.attributes["rescorer.reason"]) == (StatusCode.ERROR, "INTERNAL")
    assert (theirs.status.status_code, theirs.attributes["rpc.grpc.status_code"]) == (StatusCode.UNSET, 3)


def test_a_trace_that_is_not_sampled_and_nonsense_for_one_do_no_harm(stub, exporter):
    stub.Rescore(REQUEST, metadata=(("traceparent", f"00-{TRACE}-{PARENT}-00"),))
    stub.Rescore(REQUEST, metadata=(("traceparent", "nonsense"), ("tracestate", ",=;,")))
    (call,), _ = spans_of(exporter)
    assert call.parent is None


def test_spans_go_nowhere_unless_an_endpoint_is_set(bundle, monkeypatch):
    with run_server(bundle, load=False) as server:
        assert server.server._tracing is None
    monkeypatch.setattr(tracing, "REQUIRED_MODULES", ("opentelemetry_is.not_installed",))
    with pytest.raises(ConfigError, match=r"expected the packages of rescorer\[tracing\]"):
        load_settings(bundle=bundle, trace_endpoint="http://127.0.0.1:4317")
    with pytest.raises(ConfigError, match="trace_endpoint"):
        load_settings(bundle=bundle, trace_endpoint="127.0.0.1:4317")

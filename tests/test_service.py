"""The gRPC service over loopback, spoken to with bare stubs as any other language would."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status
from servers import running, until

from models import write_bundle
from rescorer import BundleError, ConfigError, Rescorer
from rescorer.service.server import SERVICE, SETTLE_S, Server
from rescorer.service.v1 import rescorer_pb2 as pb
from rescorer.service.v1.rescorer_pb2_grpc import RescorerServiceStub

LIMITS = {
    "max_lists": 4,
    "max_hypotheses": 5,
    "max_words": 6,
    "max_in_flight_lists": 8,
    "max_message_bytes": 65536,
}
SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def server(bundle):
    with running(bundle, **LIMITS) as server:
        yield server


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.target) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel):
    return RescorerServiceStub(channel)


@pytest.fixture
def held(server):
    """The server with scoring held up; it goes on at the end of the test at the latest."""
    server.rescorer.gate.clear()
    server.rescorer.entered.clear()
    yield server
    server.rescorer.gate.set()


def a_list(list_id="u1", texts=("the cat", "the mat"), **stream) -> pb.NBestList:
    values = [-1.0 - 0.1 * i for i in range(len(texts))]
    given = {
        "name": "acoustic",
        "base": pb.LOG_BASE_E,
        "sign": pb.SCORE_SIGN_LOG_PROB,
        "values": values,
    } | stream
    return pb.NBestList(
        id=list_id, hypotheses=[pb.Hypothesis(text=text) for text in texts], streams=[pb.ScoreStream(**given)]
    )


def refused(call, *args, **kwargs) -> tuple[grpc.StatusCode, str, str, str]:
    """Code, text, reason and field of a call that fails."""
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


def test_an_answer_holds_everything_that_led_to_it(stub, server):
    message = a_list()
    message.fields.update({"speaker": "s1", "n": 3})
    message.hypotheses[1].fields.update({"times": [0.5, None]})
    response = stub.Rescore(pb.RescoreRequest(lists=[message]))
    (answer,) = response.lists
    assert (answer.id, answer.status.code, dict(answer.fields)) == ("u1", 0, {"speaker": "s1", "n": 3})
    assert [each.rank for each in answer.hypotheses] == [1, 2]
    assert sorted(each.original_rank for each in answer.hypotheses) == [1, 2]
    by_place = {each.original_rank: each for each in answer.hypotheses}
    assert by_place[2].text == "the mat"
    assert list(by_place[2].fields["times"]) == [0.5, None]
    assert not by_place[1].HasField("fields")
    assert set(by_place[1].components) == {"acoustic", "ngram", "neural", "mixture", "words", "oov"}
    assert sum(math.exp(each.log_posterior) for each in answer.hypotheses) == pytest.approx(1.0)
    assert response.model == "tiny/1"
    assert (response.weights.name, dict(response.weights.lm)) == ("default", {"mixture": 2.0})
    assert dict(response.weights.mixture) == {"ngram": 0.5, "neural": 0.5}
    assert response.timing.compute_ms > 0
    assert response.timing.queue_ms >= 0


def test_a_bad_list_does_not_disturb_the_others(stub):
    lists = [
        a_list("good"),
        a_list("nan", values=[1.0, math.nan]),
        a_list("none", texts=()),
        a_list("short", values=[1.0]),
    ]
    answers = stub.Rescore(pb.RescoreRequest(lists=lists)).lists
    assert [each.id for each in answers] == ["good", "nan", "none", "short"]
    assert [each.status.code for each in answers] == [0, 3, 3, 3]
    assert [len(each.hypotheses) for each in answers] == [2, 0, 0, 0]
    places = []
    for answer in answers[1:]:
        bad = BadRequest()
        assert answer.status.details[1].Unpack(bad)
        places.append(bad.field_violations[0].field)
    assert places == [
        'lists[1].streams["acoustic"].values[1]',
        "lists[2].hypotheses",
        'lists[3].streams["acoustic"]',
    ]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (a_list(texts=["a"] * 6), "lists[0].hypotheses"),
        (a_list(texts=["a", "a " * 7]), "lists[0].hypotheses[1].text"),
        (a_list(texts=["a", "a-" * 7]), "lists[0].hypotheses[1].text"),
        (pb.NBestList(hypotheses=[pb.Hypothesis(text="a")], context="a " * 7), "lists[0].context"),
    ],
)
def test_a_list_over_a_limit_is_refused_alone(stub, message, field):
    answers = stub.Rescore(pb.RescoreRequest(lists=[message, a_list()])).lists
    assert [each.status.code for each in answers] == [3, 0]
    bad = BadRequest()
    assert answers[0].status.details[1].Unpack(bad)
    assert bad.field_violations[0].field == field
    assert "expected at most" in answers[0].status.message


def test_requests_that_fail_as_a_whole(stub):
    invalid, lists = grpc.StatusCode.INVALID_ARGUMENT, [a_list()]
    code, text, reason, field = refused(stub.Rescore, pb.RescoreRequest(lists=lists * 5))
    assert (code, reason, field) == (invalid, "LIMIT_EXCEEDED", "lists")
    assert "5 lists; expected at most 4" in text
    code, text, reason, _ = refused(stub.Rescore, pb.RescoreRequest(lists=lists, weights_name="other"))
    assert (code, reason) == (invalid, "INVALID_CONFIG")
    assert "'other'; the bundle has: default" in text
    for weights in (
        pb.Weights(lm={"gpt": 1.0}),
        pb.Weights(mixture={"ngram": 0.4, "neural": 0.4}),
        pb.Weights(word=math.inf),
        pb.Weights(streams={"acoustic": math.nan}),
    ):
        assert refused(stub.Rescore, pb.RescoreRequest(lists=lists, weights=weights))[0] == invalid
    assert refused(stub.ScoreText, pb.ScoreTextRequest(texts=["a"] * 6))[3] == "texts"
    assert refused(stub.ScoreText, pb.ScoreTextRequest(texts=["a", "a " * 7]))[3] == "texts[1]"
    code, text, reason, _ = refused(stub.Rescore, pb.RescoreRequest(lists=lists, model="tiny/2"))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert "'tiny/1' is" in text
    large = pb.RescoreRequest(lists=[a_list(texts=["a" * 70_000])])
    assert refused(stub.Rescore, large)[0] == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_empty_request_is_answered(stub):
    assert stub.Rescore(pb.RescoreRequest(model="tiny")).model == "tiny/1"
    assert list(stub.ScoreText(pb.ScoreTextRequest()).scores) == []
    answer = stub.Rescore(pb.RescoreRequest(lists=[a_list(texts=["", "the"])])).lists[0]
    assert {each.text for each in answer.hypotheses} == {"", "the"}


def test_bytes_that_are_no_message_are_refused(channel):
    for method in ("Rescore", "ScoreText"):
        call = channel.unary_unary(f"/{SERVICE}/{method}")
        code, text, reason, _ = refused(call, b"\x0a\xff\xff")
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT")
        assert "cannot be decoded" in text
    call = channel.stream_stream(f"/{SERVICE}/RescoreStream")
    assert refused(call, iter([b"\x0a\xff\xff"]))[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_weights_merge_and_context_are_of_the_request(stub):
    heavy = pb.Weights(name="mine", streams={"acoustic": 100.0}, lm={"ngram": 1.0})
    plain = stub.Rescore(pb.RescoreRequest(lists=[a_list(values=[-2.0, -1.0])], weights=heavy))
    assert plain.lists[0].hypotheses[0].original_rank == 2
    assert plain.weights.name == "mine"
    merged = stub.Rescore(pb.RescoreRequest(lists=[a_list(texts=["The cat", "a", "the, cat"])], merge=True))
    assert [list(each.merged_ranks) for each in merged.lists[0].hypotheses] == [[1, 3], [2]]
    alone, continued = a_list(texts=["on the mat"]), a_list(texts=["on the mat"])
    continued.context = "the cat sat"
    totals = [
        each.hypotheses[0].total for each in stub.Rescore(pb.RescoreRequest(lists=[alone, continued])).lists
    ]
    assert totals[1] != pytest.approx(totals[0], abs=1e-3)


def test_texts_are_scored_word_by_word(stub):
    response = stub.ScoreText(pb.ScoreTextRequest(texts=["The dog", ""], context="the cat sat on"))
    first, second = response.scores
    assert (first.text, list(first.words), list(first.unknown)) == ("The dog", ["the", "dog"], [False, True])
    assert {name: len(each.values) for name, each in first.log_probs.items()} == {
        "ngram": 3,
        "neural": 3,
        "mixture": 3,
    }
    assert len(second.log_probs["mixture"].values) == 1
    assert response.model == "tiny/1"
    other = stub.ScoreText(
        pb.ScoreTextRequest(texts=["the dog"], weights=pb.Weights(mixture={"ngram": 1.0, "neural": 0.0}))
    ).scores[0]
    assert list(other.log_probs["mixture"].values) == pytest.approx(list(other.log_probs["ngram"].values))


def test_a_stream_is_answered_in_order_and_ends_at_a_bad_message(stub):
    requests = [pb.RescoreStreamRequest(lists=[a_list(f"u{i}"), a_list(f"v{i}")]) for i in range(20)]
    ids = [[each.id for each in response.lists] for response in stub.RescoreStream(iter(requests))]
    assert ids == [[f"u{i}", f"v{i}"] for i in range(20)]
    bad = pb.RescoreStreamRequest(lists=[a_list()], weights_name="other")
    responses = stub.RescoreStream(iter([requests[0], bad, requests[1]]))
    assert next(responses).lists[0].id == "u0"
    with pytest.raises(grpc.RpcError, match="the bundle has"):
        next(responses)


@pytest.mark.parametrize("method", ["Rescore", "RescoreStream"])
def test_a_fault_of_ours_tells_the_client_nothing(stub, server, method, capfd, monkeypatch):
    monkeypatch.setattr(server.rescorer, "fault", RuntimeError("secret path"))
    metadata = (("x-request-id", "my-id.1"),)
    if method == "Rescore":
        code, text, reason, _ = refused(stub.Rescore, pb.RescoreRequest(lists=[a_list()]), metadata=metadata)
    else:
        requests = iter([pb.RescoreStreamRequest(lists=[a_list()])])
        code, text, reason, _ = refused(stub.RescoreStream, requests, metadata=metadata)
    assert (code, reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in text
    assert "my-id.1" in text
    logged = capfd.readouterr().out
    assert "secret path" in logged
    assert "my-id.1" in logged
    monkeypatch.undo()
    assert stub.Rescore(pb.RescoreRequest(lists=[a_list()])).lists[0].status.code == 0


def test_a_request_id_that_could_forge_a_log_line_is_replaced(stub, server):
    forged = (("x-request-id", "x injected"),)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(pb.RescoreRequest(weights_name="other"), metadata=forged)
    info = ErrorInfo()
    rpc_status.from_call(caught.value).details[0].Unpack(info)
    assert len(info.metadata["request_id"]) == 32


def test_above_its_room_a_server_refuses_calls_but_not_health_checks(stub, channel, held):
    full = pb.RescoreRequest(lists=[a_list()] * 4)
    waiting = [stub.Rescore.future(full) for _ in range(2)]
    until(lambda: held.in_flight == 8)
    code, text, reason, _ = refused(stub.Rescore, pb.RescoreRequest(lists=[a_list()]))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert "8 lists are in flight" in text
    assert HealthStub(channel).Check(HealthCheckRequest(), timeout=5).status == SERVING
    # A stream waits for room.
    stream = stub.RescoreStream(iter([pb.RescoreStreamRequest(lists=[a_list()] * 4)]))
    held.rescorer.gate.set()
    assert len(next(stream).lists) == 4
    assert all(len(each.result().lists) == 4 for each in waiting)
    until(lambda: held.in_flight == 0)


def test_queued_work_of_a_call_that_is_gone_is_never_done(stub, held):
    request = pb.RescoreRequest(lists=[a_list()])
    running_call = stub.Rescore.future(request)
    assert held.rescorer.entered.wait(5)
    calls = held.rescorer.calls
    assert refused(stub.Rescore, request, timeout=0.2)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    cancelled = stub.Rescore.future(request)
    until(lambda: held.in_flight == 2)
    cancelled.cancel()
    until(lambda: held.in_flight == 1)
    held.rescorer.gate.set()
    assert running_call.result().lists[0].status.code == 0
    stub.Rescore(request)
    assert held.rescorer.calls == calls + 1


def test_health_says_serving_only_from_loaded_to_told_to_stop(bundle):
    with running(bundle, load=False) as server, grpc.insecure_channel(server.target) as channel:
        health, stub = HealthStub(channel), RescorerServiceStub(channel)
        states = health.Watch(HealthCheckRequest(service=SERVICE), timeout=20)
        assert next(states).status == NOT_SERVING
        code, text, *_ = refused(stub.Rescore, pb.RescoreRequest())
        assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "the models are being loaded")
        server.load()
        assert server.rescorer.calls == 1  # the warm-up
        assert next(states).status == SERVING
        assert health.Check(HealthCheckRequest()).status == SERVING
        # Told to stop, it finishes what is in flight.
        server.rescorer.gate.clear()
        server.rescorer.entered.clear()
        call = stub.Rescore.future(pb.RescoreRequest(lists=[a_list()]))
        assert server.rescorer.entered.wait(5)
        stopping = server.submit(server.server.stop())
        assert next(states).status == NOT_SERVING
        time.sleep(2 * SETTLE_S)
        assert not stopping.done()
        assert refused(stub.Rescore, pb.RescoreRequest())[0] == grpc.StatusCode.UNAVAILABLE
        server.rescorer.gate.set()
        assert call.result().lists[0].status.code == 0
        stopping.result(10)


def test_a_stream_in_progress_ends_when_the_server_stops(bundle):
    with running(bundle) as server, grpc.insecure_channel(server.target) as channel:
        with ThreadPoolExecutor(1) as sender:
            responses = RescorerServiceStub(channel).RescoreStream(
                iter(lambda: pb.RescoreStreamRequest(lists=[a_list()]), None)
            )
            next(responses)
            stopping = sender.submit(lambda: server.run(server.server.stop()))
            with pytest.raises(grpc.RpcError) as caught:
                list(responses)
            stopping.result(10)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_server_told_to_stop_does_not_wait_for_clients_that_say_nothing(bundle):
    over = threading.Event()

    def one_then_silence():
        yield pb.RescoreStreamRequest(lists=[a_list()])
        over.wait(20)

    with running(bundle, grace_s=20) as server, grpc.insecure_channel(server.target) as channel:
        states = HealthStub(channel).Watch(HealthCheckRequest())
        responses = RescorerServiceStub(channel).RescoreStream(one_then_silence())
        assert (next(states).status, len(next(responses).lists)) == (SERVING, 1)
        began = time.monotonic()
        server.run(server.server.stop())
        assert time.monotonic() - began < 5
        assert next(states).status == NOT_SERVING
        assert refused(lambda: states)[0] == grpc.StatusCode.UNAVAILABLE
        code, text, *_ = refused(lambda: responses)
        assert (code, text.split(";")[0]) == (grpc.StatusCode.UNAVAILABLE, "shutting down")
        over.set()


def test_a_stream_whose_last_message_is_in_hand_ends_well_when_the_server_stops(bundle):
    with running(bundle) as server, grpc.insecure_channel(server.target) as channel:
        server.rescorer.gate.clear()
        responses = RescorerServiceStub(channel).RescoreStream(
            iter([pb.RescoreStreamRequest(lists=[a_list()])])
        )
        until(lambda: server.in_flight == 1)
        stopping = server.submit(server.server.stop())
        time.sleep(2 * SETTLE_S)
        server.rescorer.gate.set()
        assert [len(each.lists) for each in responses] == [1]
        stopping.result(10)


def test_after_the_grace_time_a_call_is_given_up(bundle):
    with running(bundle, grace_s=0.2) as server, grpc.insecure_channel(server.target) as channel:
        server.rescorer.gate.clear()
        call = RescorerServiceStub(channel).Rescore.future(pb.RescoreRequest(lists=[a_list()]))
        until(lambda: server.in_flight == 1)
        server.run(server.server.stop())
        assert refused(call.result)[0] == grpc.StatusCode.UNAVAILABLE
        server.rescorer.gate.set()


def test_a_bundle_that_cannot_be_loaded_never_serves(tmp_path):
    bundle = write_bundle(tmp_path)
    (bundle / "text.json").write_text("{}")
    with running(bundle, load=False) as server:
        with pytest.raises(BundleError):
            server.load()
        with grpc.insecure_channel(server.target) as channel:
            assert HealthStub(channel).Check(HealthCheckRequest()).status == NOT_SERVING


def test_a_port_that_is_taken_is_refused(server, tmp_path):
    of_a_killed_server = tmp_path / "port"
    of_a_killed_server.write_text("1\n")

    async def second() -> None:
        update = {"port": server.port, "port_file": of_a_killed_server}
        await Server(server.settings.model_copy(update=update), Rescorer.load).start()

    with pytest.raises(ConfigError, match="cannot listen"):
        server.run(second())
    assert not of_a_killed_server.exists()


def test_the_port_file_is_there_only_while_it_is_true(bundle, tmp_path):
    port_file = tmp_path / "port"
    with running(bundle, load=False, port_file=port_file) as server:
        assert port_file.read_text() == f"{server.port}\n"
    assert not port_file.exists()


def test_reflection_tells_the_service_and_its_methods(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    file = database.FindFileContainingSymbol(SERVICE)
    assert [method.name for method in file.service[0].method] == ["Rescore", "RescoreStream", "ScoreText"]

"""The shadow: its comparisons appear in the metrics, and callers never notice it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import BundleError, ConfigError
from rescorer.protocol.v1 import models_pb2
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.api.shadow import MAX_WAITING_LISTS, compute_pairs_alike, is_chosen
from rescorer.service.server import Server
from rescorer.service.settings import load_settings
from rescorer.types import Weights
from tests.support.prometheus import get_value, read_samples
from tests.support.servers import RunningServer, run_server, wait_until
from tests.support.small_dictionary import install_dictionary
from tests.support.stubs import make_list_message
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow

TEXTS = ("the cat sat on the mat", "the mat sat", "zebra", "on the mat", "the cat")
REQUEST_ID = (("x-request-id", "night-1"),)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A bundle with only an n-gram model."""
    return write_bundle(tmp_path_factory.mktemp("small"), neural=False)


@pytest.fixture(scope="module")
def contrary(tmp_path_factory) -> Path:
    """The same models with weights that reverse the order."""
    weights = Weights("default", {"acoustic": -1.0}, {"mixture": -2.0}, -0.1, 1.0, {"ngram": 1.0})
    return write_bundle(tmp_path_factory.mktemp("contrary"), weights, neural=False)


@pytest.fixture(autouse=True)
def _raise_priority(monkeypatch):
    """Avoid the usual low priority, which may starve the shadow on a busy test machine."""
    monkeypatch.setattr("rescorer.service.server.SHADOW_NICENESS", 1)


def run_with_shadow(bundle: Path, shadow: Path, **settings) -> RunningServer:
    settings = {"shadow_share": 1.0, "metrics_port": 0} | settings
    return run_server(bundle, shadow=str(shadow), **settings)


def rescore(server: RunningServer, count: int = 4, **fields) -> pb.RescoreResponse:
    """Rescore ``count`` lists in one call."""
    lists = [make_list_message(f"u{i}", TEXTS[: 2 + i % 4]) for i in range(count)]
    with grpc.insecure_channel(server.target) as channel:
        stub = RescorerServiceStub(channel)
        return stub.Rescore(pb.RescoreRequest(lists=lists, **fields), metadata=REQUEST_ID)


def count_lists(server: RunningServer, outcome: str) -> float:
    return get_value(read_samples(server.server.metrics_port), "shadow_lists_total", outcome=outcome)


def test_bundle_agrees_with_itself(small):
    with run_with_shadow(small, small) as server:
        rescore(server)
        wait_until(lambda: count_lists(server, "compared") == 4)
        now = read_samples(server.server.metrics_port)
        shadow = {"shadow": "tiny/1"}
        assert get_value(now, "shadow_same_best_total", **shadow) == 4
        assert get_value(now, "shadow_pairs_alike_sum", **shadow) == get_value(
            now, "shadow_pairs_alike_count", **shadow
        )
        assert 0 < get_value(now, "shadow_seconds_sum", **shadow) < 30
        assert get_value(now, "shadow_seconds_count", **shadow) == 4
        (pid,) = server.server.shadow.pool.workers[0].pids
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 1


def test_different_bundle_disagrees_without_affecting_answers(small, contrary):
    with run_server(small) as alone:
        expected = rescore(alone)
    with run_with_shadow(small, contrary) as server:
        answer = rescore(server)
        answer.ClearField("timing")
        expected.ClearField("timing")
        assert answer == expected
        wait_until(lambda: count_lists(server, "compared") == 4)
        now = read_samples(server.server.metrics_port)
        assert get_value(now, "shadow_same_best_total", shadow="tiny/1") == 0
        assert get_value(now, "shadow_pairs_alike_sum", shadow="tiny/1") == 0
        assert (
            get_value(now, "batch_lists_sum") == get_value(now, "lists_total", model="tiny/1", code="OK") == 4
        )
        assert get_value(now, "pieces_total", outcome="scored") == 4


def test_compares_messages_of_a_stream_with_merging(small):
    lists = [make_list_message(f"u{i}", ("the cat", "the mat", "The cat")) for i in range(3)]
    requests = [pb.RescoreStreamRequest(lists=[nbest], merge=True) for nbest in lists]
    with run_with_shadow(small, small) as server, grpc.insecure_channel(server.target) as channel:
        assert len(list(RescorerServiceStub(channel).RescoreStream(iter(requests)))) == 3
        wait_until(lambda: count_lists(server, "compared") + count_lists(server, "dropped") == 3)
        same = get_value(read_samples(server.server.metrics_port), "shadow_same_best_total", shadow="tiny/1")
        assert same == count_lists(server, "compared") > 0


def test_expects_the_phrases_of_a_request(small, tmp_path, monkeypatch):
    install_dictionary(tmp_path, monkeypatch)
    phrases = [pb.Phrase(text="zebra", weight=100), pb.Phrase(text="cats", weight=90)]
    with run_with_shadow(small, small) as server:
        answer = rescore(server, phrases=phrases, generate=True)
        generated = [nbest.hypotheses[0].HasField("generated") for nbest in answer.lists]
        assert generated == [True, False, False, False]
        wait_until(lambda: count_lists(server, "compared") == 4)
        now = read_samples(server.server.metrics_port)
        shadow = {"shadow": "tiny/1"}
        assert get_value(now, "shadow_same_best_total", **shadow) == 4
        assert get_value(now, "shadow_pairs_alike_sum", **shadow) == 4


def test_compares_a_share_of_the_lists(small):
    chosen = sum(is_chosen("night-1", f"u{i}", 0.5) for i in range(48))
    with run_with_shadow(small, small, shadow_share=0.5) as server:
        rescore(server, 48)
        wait_until(lambda: count_lists(server, "compared") == chosen)
        rescore(server, 48)
        wait_until(lambda: count_lists(server, "compared") == 2 * chosen)
        assert count_lists(server, "dropped") == count_lists(server, "failed") == 0


@given(st.floats(0, 1), st.text(max_size=8))
def test_larger_share_includes_the_lists_of_a_smaller_one(share, request_id):
    def choose(part: float) -> set[int]:
        return {i for i in range(400) if is_chosen(request_id, str(i), part)}

    assert choose(share / 2) <= choose(share)
    assert abs(len(choose(share)) / 400 - share) < 0.15
    assert not is_chosen(request_id, "u", 0.0)
    assert is_chosen(request_id, "u", 1.0)


def test_shadow_errors_do_not_affect_answers(small, contrary):
    with run_with_shadow(small, contrary) as server:
        rescore(server, 2)
        wait_until(lambda: count_lists(server, "compared") == 2)
        shadow = server.server.shadow
        server.run(shadow.pool.workers[0].unload("tiny/1"))  # scoring fails from now on
        assert [answer.status.code for answer in rescore(server, 3).lists] == [0, 0, 0]
        wait_until(lambda: count_lists(server, "failed") == 3)
        assert not server.server.broken.done()
        assert get_value(read_samples(server.server.metrics_port), "ready") == 1


def test_weights_that_do_not_fit_the_shadow_do_not_affect_answers(bundle, small):
    with run_with_shadow(bundle, small) as server:
        rescore(server, 2)
        wait_until(lambda: count_lists(server, "compared") == 2)
        answer = rescore(server, 3, weights=pb.Weights(lm={"neural": 1.0}))
        assert [rescored.status.code for rescored in answer.lists] == [0, 0, 0]
        wait_until(lambda: count_lists(server, "failed") == 3)


def test_restarts_a_killed_worker(small):
    with run_with_shadow(small, small) as server:
        rescore(server, 1)
        wait_until(lambda: count_lists(server, "compared") == 1)
        worker = server.server.shadow.pool.workers[0]
        (killed,) = worker.pids
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in worker.pids)
        assert rescore(server, 1).lists[0].status.code == 0
        wait_until(lambda: count_lists(server, "compared") == 2)
        assert get_value(read_samples(server.server.metrics_port), "worker_restarts_total") == 0


def test_drops_lists_while_requests_wait_or_the_queue_is_full(small):
    with run_with_shadow(small, small, max_lists=128) as server:
        rescore(server, 1)
        wait_until(lambda: count_lists(server, "compared") == 1)
        shadow = server.server.shadow
        is_busy, shadow.is_busy = shadow.is_busy, lambda: True
        rescore(server, 5)
        wait_until(lambda: count_lists(server, "dropped") == 5)
        shadow.is_busy = is_busy
        rescore(server, 100)
        wait_until(lambda: count_lists(server, "compared") + count_lists(server, "dropped") == 106)
        assert count_lists(server, "dropped") == 5 + 100 - MAX_WAITING_LISTS


def test_stopping_server_does_not_wait_for_the_shadow(small):
    with run_with_shadow(small, small) as server:
        rescore(server, 1)
        wait_until(lambda: count_lists(server, "compared") == 1)
        os.kill(
            server.server.shadow.pool.workers[0].pids[0], signal.SIGSTOP
        )  # it would not answer for a minute
        rescore(server, 8)
        wait_until(lambda: server.server.shadow.n_waiting == 7)
    assert server.server.shadow.pool.workers[0].pids == ()


def test_shadow_switches_to_a_newer_version_in_the_repository(small, contrary, tmp_path):
    def add(source: Path, version: int) -> None:
        partial = tmp_path / "tiny" / f".{version}"
        partial.parent.mkdir(exist_ok=True)
        shutil.copytree(source, partial)
        manifest = json.loads((partial / "manifest.json").read_text()) | {"version": version}
        (partial / "manifest.json").write_text(json.dumps(manifest))
        partial.rename(tmp_path / "tiny" / str(version))

    add(small, 1)
    with (
        run_server(
            None, repository=tmp_path, models=("tiny/1",), shadow="tiny", shadow_share=1, metrics_port=0
        ) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        rescore(server, 2)
        wait_until(lambda: count_lists(server, "compared") == 2)
        add(contrary, 2)
        server.run(server.server.reloader.reload())
        wait_until(lambda: [version.label for version in server.server.shadow.models.versions] == ["tiny/2"])
        rescore(server, 2)
        wait_until(lambda: count_lists(server, "compared") == 4)
        assert (
            get_value(read_samples(server.server.metrics_port), "shadow_seconds_count", shadow="tiny/2") == 2
        )
        models = ModelServiceStub(channel).ListModels(models_pb2.ListModelsRequest()).models
        states = [(model.model, model.state, model.is_default) for model in models]
        assert states == [
            ("tiny/1", models_pb2.MODEL_STATE_SERVING, True),
            ("tiny/2", models_pb2.MODEL_STATE_SHADOW, False),
        ]
        with pytest.raises(grpc.RpcError, match="'tiny/2' is not served"):
            rescore(server, 1, model="tiny/2")


def test_server_works_if_the_shadow_cannot_be_loaded(small, contrary, tmp_path):
    shutil.copytree(contrary, tmp_path / "1")
    (tmp_path / "1" / "ngram" / "model.arpa").write_text("damaged")
    with run_with_shadow(small, tmp_path / "1") as server, grpc.insecure_channel(server.target) as channel:
        assert rescore(server, 2).lists[0].status.code == 0
        wait_until(lambda: count_lists(server, "failed") == 2)
        _, refused = ModelServiceStub(channel).ListModels(models_pb2.ListModelsRequest()).models
        assert refused.state == models_pb2.MODEL_STATE_REFUSED


def test_rejects_a_missing_shadow_at_start(small, tmp_path):
    for expected, settings in (
        ("nowhere", {"bundle": small, "shadow": str(tmp_path / "nowhere")}),
        (
            "has no bundle other to use",
            {"repository": small.parent.parent, "models": ("a",), "shadow": "other"},
        ),
    ):
        with pytest.raises(BundleError, match=expected):
            asyncio.run(start_server(load_settings(port=0, **settings)))
    with pytest.raises(ConfigError, match="shadow: expected models"):
        load_settings(repository=small.parent.parent, shadow="tiny")


async def start_server(settings) -> None:
    await Server(settings).start()


def count_pairs_one_by_one(first, second) -> float:
    common = [item for item in first if item in second]
    pairs = list(itertools.combinations(common, 2))
    return sum(second.index(a) < second.index(b) for a, b in pairs) / len(pairs) if pairs else 1.0


@given(st.permutations(range(7)), st.permutations(range(7)), st.integers(0, 7), st.integers(0, 7))
def test_pairs_alike_equals_counting_one_by_one(first, second, n, m):
    assert compute_pairs_alike(first[:n], second[:m]) == pytest.approx(
        count_pairs_one_by_one(first[:n], second[:m])
    )

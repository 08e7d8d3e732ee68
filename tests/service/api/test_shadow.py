"""A second bundle beside the first: compared in the metrics, and seen nowhere else."""

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
from rescorer.service.preflight import load_settings
from rescorer.service.server import Server
from rescorer.types import Weights
from tests.support.prometheus import get_value, read_samples
from tests.support.servers import RunningServer, run_server, wait_until
from tests.support.stubs import make_list_message
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow

TEXTS = ("the cat sat on the mat", "the mat sat", "zebra", "on the mat", "the cat")
REQUEST_ID = (("x-request-id", "night-1"),)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A bundle of an n-gram alone."""
    return write_bundle(tmp_path_factory.mktemp("small"), neural=False)


@pytest.fixture(scope="module")
def contrary(tmp_path_factory) -> Path:
    """The same models with weights that turn its order round."""
    weights = Weights("default", {"acoustic": -1.0}, {"mixture": -2.0}, -0.1, 1.0, {"ngram": 1.0})
    return write_bundle(tmp_path_factory.mktemp("contrary"), weights, neural=False)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """A machine that runs tests may have nothing left for who is nice."""
    monkeypatch.setattr("rescorer.service.assembly.SHADOW_NICENESS", 1)


def shadowed(bundle: Path, shadow: Path, **settings) -> RunningServer:
    settings = {"shadow_share": 1.0, "metrics_port": 0} | settings
    return run_server(bundle, shadow=str(shadow), **settings)


def rescored(server: RunningServer, count: int = 4, **fields) -> pb.RescoreResponse:
    """The answer to so many lists in one call."""
    lists = [make_list_message(f"u{i}", TEXTS[: 2 + i % 4]) for i in range(count)]
    with grpc.insecure_channel(server.target) as channel:
        stub = RescorerServiceStub(channel)
        return stub.Rescore(pb.RescoreRequest(lists=lists, **fields), metadata=REQUEST_ID)


def told(server: RunningServer, outcome: str) -> float:
    return get_value(read_samples(server.server.metrics_port), "shadow_lists_total", outcome=outcome)


def test_a_bundle_is_its_own_shadow_and_agrees(small):
    with shadowed(small, small) as server:
        rescored(server)
        wait_until(lambda: told(server, "compared") == 4)
        now = read_samples(server.server.metrics_port)
        shadow = {"shadow": "tiny/1"}
        assert get_value(now, "shadow_same_best_total", **shadow) == 4
        assert get_value(now, "shadow_pairs_alike_sum", **shadow) == get_value(
            now, "shadow_pairs_alike_count", **shadow
        )
        assert 0 < get_value(now, "shadow_seconds_sum", **shadow) < 30
        assert get_value(now, "shadow_seconds_count", **shadow) == 4
        pid = server.server.shadow._pool.workers[0].pid
        assert os.getpriority(os.PRIO_PROCESS, pid) == 1


def test_another_bundle_differs_and_its_answers_are_nowhere(small, contrary):
    with run_server(small) as alone:
        expected = rescored(alone)
    with shadowed(small, contrary) as server:
        answer = rescored(server)
        answer.ClearField("timing")
        expected.ClearField("timing")
        assert answer == expected
        wait_until(lambda: told(server, "compared") == 4)
        now = read_samples(server.server.metrics_port)
        assert get_value(now, "shadow_same_best_total", shadow="tiny/1") == 0
        assert get_value(now, "shadow_pairs_alike_sum", shadow="tiny/1") == 0
        assert (
            get_value(now, "batch_lists_sum") == get_value(now, "lists_total", model="tiny/1", code="OK") == 4
        )
        assert get_value(now, "pieces_total", outcome="scored") == 4


def test_messages_of_a_stream_are_compared_and_merging_is_too(small):
    lists = [make_list_message(f"u{i}", ("the cat", "the mat", "The cat")) for i in range(3)]
    requests = [pb.RescoreStreamRequest(lists=[each], merge=True) for each in lists]
    with shadowed(small, small) as server, grpc.insecure_channel(server.target) as channel:
        assert len(list(RescorerServiceStub(channel).RescoreStream(iter(requests)))) == 3
        wait_until(lambda: told(server, "compared") + told(server, "dropped") == 3)
        same = get_value(read_samples(server.server.metrics_port), "shadow_same_best_total", shadow="tiny/1")
        assert same == told(server, "compared") > 0


def test_a_share_of_the_lists_is_compared(small):
    chosen = sum(is_chosen("night-1", f"u{i}", 0.5) for i in range(48))
    with shadowed(small, small, shadow_share=0.5) as server:
        rescored(server, 48)
        wait_until(lambda: told(server, "compared") == chosen)
        rescored(server, 48)
        wait_until(lambda: told(server, "compared") == 2 * chosen)
        assert told(server, "dropped") == told(server, "failed") == 0


@given(st.floats(0, 1), st.text(max_size=8))
def test_the_share_is_kept_and_grows_with_the_same_lists_in_it(share, request_id):
    of = {part: {i for i in range(400) if is_chosen(request_id, str(i), part)} for part in (share / 2, share)}
    assert of[share / 2] <= of[share]
    assert abs(len(of[share]) / 400 - share) < 0.15
    assert not is_chosen(request_id, "u", 0.0)
    assert is_chosen(request_id, "u", 1.0)


def test_what_meets_a_fault_changes_no_answer(small, contrary):
    with shadowed(small, contrary) as server:
        rescored(server, 2)
        wait_until(lambda: told(server, "compared") == 2)
        shadow = server.server.shadow
        server.run(shadow._pool.workers[0].unload("tiny/1"))  # as a model that cannot be asked
        assert [each.status.code for each in rescored(server, 3).lists] == [0, 0, 0]
        wait_until(lambda: told(server, "failed") == 3)
        assert not server.server.broken.done()
        assert get_value(read_samples(server.server.metrics_port), "ready") == 1


def test_weights_that_the_shadow_does_not_have_are_its_fault_alone(bundle, small):
    with shadowed(bundle, small) as server:
        rescored(server, 2)
        wait_until(lambda: told(server, "compared") == 2)
        answer = rescored(server, 3, weights=pb.Weights(lm={"neural": 1.0}))
        assert [each.status.code for each in answer.lists] == [0, 0, 0]
        wait_until(lambda: told(server, "failed") == 3)


def test_a_process_that_is_killed_comes_back(small):
    with shadowed(small, small) as server:
        rescored(server, 1)
        wait_until(lambda: told(server, "compared") == 1)
        worker = server.server.shadow._pool.workers[0]
        killed = worker.pid
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not worker.alive)
        assert rescored(server, 1).lists[0].status.code == 0
        wait_until(lambda: told(server, "compared") == 2)
        assert worker.pid != killed
        assert get_value(read_samples(server.server.metrics_port), "worker_restarts_total") == 0


def test_lists_are_dropped_where_others_wait_or_too_many_do(small):
    with shadowed(small, small, max_lists=128) as server:
        rescored(server, 1)
        wait_until(lambda: told(server, "compared") == 1)
        idle, server.server.shadow._busy = server.server.shadow._busy, lambda: True
        rescored(server, 5)
        wait_until(lambda: told(server, "dropped") == 5)
        server.server.shadow._busy = idle
        rescored(server, 100)
        wait_until(lambda: told(server, "compared") + told(server, "dropped") == 106)
        assert told(server, "dropped") == 5 + 100 - MAX_WAITING_LISTS


def test_a_server_that_stops_does_not_wait_for_it(small):
    with shadowed(small, small) as server:
        rescored(server, 1)
        wait_until(lambda: told(server, "compared") == 1)
        os.kill(server.server.shadow._pool.workers[0].pid, signal.SIGSTOP)  # it would take a minute
        rescored(server, 8)
        wait_until(lambda: server.server.shadow._waiting.qsize() == 7)
    assert server.server.shadow._pool.workers[0].pid == 0


def test_a_version_of_the_repository_shadows_and_a_newer_one_follows(small, contrary, tmp_path):
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
        rescored(server, 2)
        wait_until(lambda: told(server, "compared") == 2)
        add(contrary, 2)
        server.run(server.server.reloader.reload())
        wait_until(lambda: [each.label for each in server.server.shadow.models.versions] == ["tiny/2"])
        rescored(server, 2)
        wait_until(lambda: told(server, "compared") == 4)
        assert (
            get_value(read_samples(server.server.metrics_port), "shadow_seconds_count", shadow="tiny/2") == 2
        )
        models = ModelServiceStub(channel).ListModels(models_pb2.ListModelsRequest()).models
        states = [(each.model, each.state, each.is_default) for each in models]
        assert states == [
            ("tiny/1", models_pb2.MODEL_STATE_SERVING, True),
            ("tiny/2", models_pb2.MODEL_STATE_SHADOW, False),
        ]
        with pytest.raises(grpc.RpcError, match="'tiny/2' is not served"):
            rescored(server, 1, model="tiny/2")


def test_a_shadow_that_cannot_be_loaded_is_told_and_the_first_serves(small, contrary, tmp_path):
    shutil.copytree(contrary, tmp_path / "1")
    (tmp_path / "1" / "ngram" / "model.arpa").write_text("damaged")
    with shadowed(small, tmp_path / "1") as server, grpc.insecure_channel(server.target) as channel:
        assert rescored(server, 2).lists[0].status.code == 0
        wait_until(lambda: told(server, "failed") == 2)
        _, refused = ModelServiceStub(channel).ListModels(models_pb2.ListModelsRequest()).models
        assert refused.state == models_pb2.MODEL_STATE_REFUSED


def test_a_shadow_that_is_not_there_is_refused_at_the_start(small, tmp_path):
    for mistake, settings in (
        ("nowhere", {"bundle": small, "shadow": str(tmp_path / "nowhere")}),
        (
            "has no bundle other, which",
            {"repository": small.parent.parent, "models": ("a",), "shadow": "other"},
        ),
    ):
        with pytest.raises(BundleError, match=mistake):
            asyncio.run(started(load_settings(port=0, **settings)))
    with pytest.raises(ConfigError, match="shadow: expected models"):
        load_settings(repository=small.parent.parent, shadow="tiny")


async def started(settings) -> None:
    await Server(settings).start()


def plain_pairs_alike(first, second) -> float:
    common = [place for place in first if place in second]
    pairs = list(itertools.combinations(common, 2))
    return sum(second.index(a) < second.index(b) for a, b in pairs) / len(pairs) if pairs else 1.0


@given(st.permutations(range(7)), st.permutations(range(7)), st.integers(0, 7), st.integers(0, 7))
def test_pairs_are_counted_as_one_by_one(first, second, n, m):
    assert compute_pairs_alike(first[:n], second[:m]) == pytest.approx(
        plain_pairs_alike(first[:n], second[:m])
    )

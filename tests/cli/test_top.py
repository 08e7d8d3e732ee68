"""The command ``rescorer top``: what it shows of a running server is what the server did."""

from __future__ import annotations

import io
import json
import random
import re
import statistics
import threading

import grpc
import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from rich.console import Console
from typer.testing import CliRunner

from rescorer.cli import app
from rescorer.cli.top.command import view
from rescorer.cli.top.scrape import Scrape, compare, quantile
from rescorer.errors import Unavailable
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.observability.metrics import SECONDS
from tests.support.servers import run_server
from tests.support.stubs import make_list_message


@pytest.fixture(scope="module")
def server(bundle):
    with run_server(bundle, metrics_port=0) as server:
        yield server


@pytest.fixture
def busy(server):
    """Somebody asks all the time."""
    over = threading.Event()

    def ask() -> None:
        with grpc.insecure_channel(server.target) as channel:
            stub = RescorerServiceStub(channel)
            while not over.is_set():
                stub.Rescore(pb.RescoreRequest(lists=[make_list_message(texts=["the cat", "the dog"])] * 2))

    asking = threading.Thread(target=ask)
    asking.start()
    yield f"127.0.0.1:{server.server.metrics_port}"
    over.set()
    asking.join()


def test_one_picture_for_machines(busy):
    done = CliRunner().invoke(app, ["top", busy, "--every", "0.5", "--once", "--json"])
    assert done.exit_code == 0, done.output
    # The server's log is there, too: it runs in this process.
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("{")]
    picture = json.loads(line)
    assert picture["ready"] is True
    assert picture["scorers"] == 1
    calls = picture["calls_per_s"]["OK"]
    assert picture["lists_per_s"] == pytest.approx(2 * calls, rel=0.2)
    assert 0 < picture["compute_ms"]["p50"] <= picture["compute_ms"]["p99"]
    assert 0 < picture["call_ms"]["p50"] <= picture["call_ms"]["p99"]
    assert picture["memory_bytes"] > 10e6
    # The same list twice, "the" in each hypothesis, and one end each: 5 edges for 12 words and ends.
    assert picture["distinct"] == pytest.approx(5 / 12)
    model = picture["models"]["tiny/1"]
    assert model["lists_per_s"] == pytest.approx(picture["lists_per_s"])
    assert model["unknown_words"] == pytest.approx(1 / 4)
    assert sum(picture["phase_shares"].values()) > 0


def test_one_picture_for_people(busy):
    done = CliRunner().invoke(app, ["top", busy, "--every", "0.3", "--once"])
    assert done.exit_code == 0, done.output
    for told in ("serving", "tiny/1", "OK", "queue", "network", "p99 ms", "unknown words"):
        assert told in done.stdout


def test_a_server_that_cannot_be_read_is_told():
    done = CliRunner().invoke(app, ["top", "127.0.0.1:1", "--once"])
    assert isinstance(done.exception, Unavailable)


def test_what_has_no_metrics_is_named_and_not_printed(server):
    done = CliRunner().invoke(app, ["top", server.target, "--once"])
    assert isinstance(done.exception, Unavailable)
    assert "no metrics: it speaks HTTP/2" in str(done.exception)
    assert str(done.exception).isprintable()


def test_what_an_idle_server_did_not_measure_is_no_zero():
    idle = Scrape('rescorer_lists_total{model="m/1",code="OK"} 10\n', 0.0)
    picture = compare(idle, idle)
    assert (picture.distinct, picture.batch_lists, picture.call_ms.p99) == (None, None, None)
    printed = Console(file=io.StringIO(), width=110)
    printed.print(view("here:1", picture))
    shown = printed.file.getvalue()
    assert "a batch – lists, – edges  distinct –" in shown
    assert re.search(r"call +– +– ", shown)
    assert re.search(r"m/1 +0\.0 +– +– ", shown)


def test_quantiles_are_those_of_the_values_within_a_bucket():
    rng = random.Random(1)
    registry = CollectorRegistry()
    histogram = Histogram("rescorer_queue_seconds", "…", registry=registry, buckets=SECONDS)
    before = Scrape(generate_latest(registry).decode(), 0.0)
    values = [rng.lognormvariate(-4, 1) for _ in range(2000)]
    for each in values:
        histogram.observe(each)
    picture = compare(before, Scrape(generate_latest(registry).decode(), 2.0))
    cuts = statistics.quantiles(values, n=100)
    assert picture.queue_ms.p50 == pytest.approx(1e3 * cuts[49], rel=0.25)
    assert picture.queue_ms.p99 == pytest.approx(1e3 * cuts[98], rel=0.25)
    assert quantile(0.5, {}) is quantile(0.5, {1.0: 0.0, float("inf"): 0.0}) is None
    assert quantile(0.5, {1.0: 0.0, float("inf"): 3.0}) == 1.0


def test_a_server_that_began_anew_has_done_nothing_before():
    old = Scrape('rescorer_lists_total{model="m/1",code="OK"} 10\n', 0.0)
    new = Scrape('rescorer_lists_total{model="m/1",code="OK"} 4\n', 1.0)
    assert compare(old, new).lists_per_s == 0.0
    assert compare(old, new).calls_per_s == {}

"""Tests of ``rescorer top``: its snapshots agree with what a server did."""

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
from rescorer.cli.service.top.command import render
from rescorer.cli.service.top.scrape import Scrape, compare, quantile
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
def busy_address(server):
    """Address of the metrics of a server that scores lists all the time."""
    stop = threading.Event()

    def send_calls() -> None:
        with grpc.insecure_channel(server.target) as channel:
            stub = RescorerServiceStub(channel)
            while not stop.is_set():
                lists = [make_list_message(texts=["the cat", "the dog"])] * 2
                stub.Rescore(pb.RescoreRequest(lists=lists))

    caller = threading.Thread(target=send_calls)
    caller.start()
    yield f"127.0.0.1:{server.server.metrics_port}"
    stop.set()
    caller.join()


def test_writes_a_snapshot_as_json(busy_address):
    result = CliRunner().invoke(app, ["top", busy_address, "--every", "0.5", "--once", "--json"])
    assert result.exit_code == 0, result.output
    # The output also has the log of the server, which runs in this process.
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("{")]
    snapshot = json.loads(line)
    assert snapshot["ready"] is True
    assert snapshot["workers"] == 1
    calls = snapshot["calls_per_s"]["OK"]
    assert snapshot["lists_per_s"] == pytest.approx(2 * calls, rel=0.2)
    assert 0 < snapshot["compute_ms"]["p50"] <= snapshot["compute_ms"]["p99"]
    assert 0 < snapshot["call_ms"]["p50"] <= snapshot["call_ms"]["p99"]
    assert snapshot["memory_bytes"] > 10e6
    # The same list twice, "the" in each hypothesis, and one end each: 5 edges for 12 words and ends.
    assert snapshot["distinct"] == pytest.approx(5 / 12)
    model = snapshot["models"]["tiny/1"]
    assert model["lists_per_s"] == pytest.approx(snapshot["lists_per_s"])
    assert model["unknown_words"] == pytest.approx(1 / 4)
    assert sum(snapshot["phase_shares"].values()) > 0


def test_shows_a_snapshot_as_tables(busy_address):
    result = CliRunner().invoke(app, ["top", busy_address, "--every", "0.3", "--once"])
    assert result.exit_code == 0, result.output
    for text in ("serving", "tiny/1", "OK", "queue", "network", "p99 ms", "unknown words"):
        assert text in result.stdout


def test_rejects_an_address_that_cannot_be_read():
    result = CliRunner().invoke(app, ["top", "127.0.0.1:1", "--once"])
    assert isinstance(result.exception, Unavailable)
    assert str(result.exception).endswith(
        "cannot read metrics: connection refused; is the server running, with this --metrics-port?"
    )


def test_recognises_the_grpc_port(server):
    result = CliRunner().invoke(app, ["top", server.target, "--once"])
    assert isinstance(result.exception, Unavailable)
    assert "cannot read metrics: expected HTTP/1, got HTTP/2" in str(result.exception)
    assert str(result.exception).isprintable()


def test_shows_dashes_for_what_an_idle_server_did_not_measure():
    idle = Scrape('rescorer_lists_total{model="m/1",code="OK"} 10\n', 0.0)
    snapshot = compare(idle, idle)
    assert (snapshot.distinct, snapshot.batch_lists, snapshot.call_ms.p99) == (None, None, None)
    console = Console(file=io.StringIO(), width=110)
    console.print(render("here:1", snapshot))
    output = console.file.getvalue()
    assert "per batch – lists, – edges  distinct –" in output
    assert re.search(r"call +– +– ", output)
    assert re.search(r"m/1 +0\.0 +– +– ", output)


def test_estimates_quantiles_within_a_bucket():
    rng = random.Random(1)
    registry = CollectorRegistry()
    histogram = Histogram("rescorer_queue_seconds", "…", registry=registry, buckets=SECONDS)
    before = Scrape(generate_latest(registry).decode(), 0.0)
    values = [rng.lognormvariate(-4, 1) for _ in range(2000)]
    for value in values:
        histogram.observe(value)
    snapshot = compare(before, Scrape(generate_latest(registry).decode(), 2.0))
    percentiles = statistics.quantiles(values, n=100)
    assert snapshot.queue_ms.p50 == pytest.approx(1e3 * percentiles[49], rel=0.25)
    assert snapshot.queue_ms.p99 == pytest.approx(1e3 * percentiles[98], rel=0.25)
    assert quantile(0.5, {}) is quantile(0.5, {1.0: 0.0, float("inf"): 0.0}) is None
    assert quantile(0.5, {1.0: 0.0, float("inf"): 3.0}) == 1.0


def test_a_restart_does_not_give_negative_rates():
    old = Scrape('rescorer_lists_total{model="m/1",code="OK"} 10\n', 0.0)
    new = Scrape('rescorer_lists_total{model="m/1",code="OK"} 4\n', 1.0)
    assert compare(old, new).lists_per_s == 0.0
    assert compare(old, new).calls_per_s == {}

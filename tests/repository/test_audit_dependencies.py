"""The audit of dependencies: against an index of advisories on this machine, and without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import pytest

from tests.conftest import REPOSITORY

ADVISORIES: dict[str, list[dict]] = {}
"""By package."""


class Index(BaseHTTPRequestHandler):
    """Knows every release but typer's."""

    def do_GET(self) -> None:
        name = self.path.split("/")[2]
        self.send_response(404 if name == "typer" else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"vulnerabilities": ADVISORIES.get(name, [])}).encode())

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def index() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/pypi"
    server.shutdown()
    server.server_close()
    ADVISORIES.clear()


def audited(url: str, *options: str) -> tuple[int, str]:
    environment = {**os.environ, "AUDIT_URL": url}
    command = [sys.executable, REPOSITORY / ".ci" / "audit.py", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert not done.stderr
    return done.returncode, done.stdout


def test_an_advisory_for_an_installed_version_is_told_and_fails(index):
    advisory = {
        "id": "PYSEC-1",
        "aliases": ["CVE-1"],
        "fixed_in": ["9.9"],
        "summary": "reads too much",
    }
    ADVISORIES["numpy"] = [advisory, advisory | {"id": "PYSEC-2", "withdrawn": "2026-01-01T00:00:00Z"}]
    code, told = audited(index)
    assert code == 1
    assert f"numpy {version('numpy')}: PYSEC-1, fixed in 9.9: reads too much" in told
    assert "PYSEC-2" not in told
    assert "not looked up: typer" in told
    assert "1 advisories" in told


def test_no_advisories_pass(index):
    code, told = audited(index)
    assert (code, told.splitlines()[-1].endswith(" 0 advisories")) == (0, True)


def test_an_index_that_is_not_there_is_said_and_passes_unless_it_is_required():
    nowhere = "http://127.0.0.1:1/pypi"
    code, told = audited(nowhere)
    assert code == 0
    assert told.startswith(f"audit skipped: {nowhere}: ")
    assert audited(nowhere, "--required")[0] == 2

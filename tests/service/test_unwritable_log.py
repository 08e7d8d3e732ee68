"""A server whose stderr is full, closed or never read answers, drains and stops as usual."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rescorer import Hypothesis, NBestList
from rescorer.client import NO_RETRY, Client
from rescorer.errors import ModelNotFound, ServiceError, Unavailable
from rescorer.service.logs import PAUSE_S
from tests.support.prometheus import read_samples
from tests.support.serve_command import SERVE_COMMAND
from tests.support.servers import wait_until
from tools.observation import read_metrics_port

pytestmark = pytest.mark.slow

LIST = NBestList("u1", (Hypothesis("the cat"), Hypothesis("the cat sat")), {"acoustic": (-1.0, -2.0)})
DROPPED = "rescorer_log_lines_dropped_total"


def fill(descriptor: int) -> None:
    """Fill a pipe that nobody reads."""
    os.set_blocking(descriptor, False)
    try:
        while True:
            os.write(descriptor, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(descriptor, True)


@contextmanager
def unwritable_stderr(kind: str) -> Iterator[int]:
    """Yield a descriptor on a full disk, or of a pipe without a reader or with one that never reads."""
    if kind == "full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
        yield descriptor
        os.close(descriptor)
        return
    reading, writing = os.pipe()
    if kind == "closed pipe":
        os.close(reading)
    else:
        fill(writing)
    yield writing
    os.close(writing)
    if kind != "closed pipe":
        os.close(reading)


@contextmanager
def serve(bundle: Path, folder: Path, *options: object, **popen: object) -> Iterator[subprocess.Popen]:
    """Start a server, wait until it listens, and kill it at the end."""
    port_file = folder / "port"
    command = (*SERVE_COMMAND, "--bundle", bundle, "--port", "0", "--port-file", port_file, *options)
    process = subprocess.Popen([str(part) for part in command], **popen)
    try:
        wait_until(lambda: port_file.exists() or process.poll() is not None, 60)
        assert process.poll() is None, "the server has ended"
        yield process
    finally:
        process.kill()
        process.wait()


def connect(folder: Path, model: str = "") -> Client:
    return Client(f"127.0.0.1:{(folder / 'port').read_text().strip()}", model=model, retry=NO_RETRY)


@pytest.mark.parametrize("front_ends", [1, 2])
@pytest.mark.parametrize("kind", ["full disk", "closed pipe", "stalled reader"])
def test_answers_and_drains_if_stderr_cannot_be_written(ngram_bundle, tmp_path, kind, front_ends):
    outcomes: list[str] = []
    with (
        unwritable_stderr(kind) as stderr,
        serve(ngram_bundle, tmp_path, "--front-ends", front_ends, stderr=stderr) as process,
        connect(tmp_path) as client,
        connect(tmp_path, model="x" * 1_000) as mistaken_client,
    ):
        client.wait_ready(60)
        for _ in range(60):
            client.rescore([LIST], timeout_s=20)
            with pytest.raises(ModelNotFound):
                mistaken_client.rescore([LIST], timeout_s=20)

        def call_until_refused() -> None:
            while True:
                try:
                    client.rescore([LIST], timeout_s=20)
                    outcomes.append("answered")
                except Unavailable:
                    return
                except ServiceError as error:
                    outcomes.append(repr(error))

        calling = threading.Thread(target=call_until_refused)
        calling.start()
        wait_until(lambda: len(outcomes) > 5)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert process.wait(30) == 0
        assert time.monotonic() - began < 15
        calling.join(30)
    assert set(outcomes) == {"answered"}


def test_counts_dropped_lines_and_says_so_once_the_log_can_be_written(ngram_bundle, tmp_path):
    log = tmp_path / "log"
    max_bytes = 20_000

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))

    with (
        log.open("a") as stderr,
        serve(
            ngram_bundle, tmp_path, "--metrics-port", 0, stderr=stderr, preexec_fn=limit_file_size
        ) as process,
        connect(tmp_path) as client,
    ):
        client.wait_ready(60)
        port = read_metrics_port(log)
        n_calls = 0
        while log.stat().st_size < max_bytes or n_calls < 100:
            client.rescore([LIST])
            n_calls += 1
        time.sleep(10 * PAUSE_S)  # until the pipe in front of stderr is empty
        dropped = read_samples(port)[DROPPED, ()]
        assert dropped == pytest.approx(n_calls - log.read_text().count("call answered"), abs=5)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        time.sleep(1.1)
        client.rescore([LIST])
        wait_until(lambda: "log lines were dropped" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    lines = log.read_text().splitlines()
    notices = [json.loads(line) for line in lines if "log lines were dropped" in line]
    assert [notice["lines"] for notice in notices] == [dropped]
    assert json.loads(lines[-1])["event"] == "stopped"


@pytest.mark.parametrize("front_ends", [1, 2])
def test_last_lines_before_the_end_arrive_in_order(ngram_bundle, tmp_path, front_ends):
    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        serve(ngram_bundle, tmp_path, "--front-ends", front_ends, stderr=stderr) as process,
        connect(tmp_path) as client,
    ):
        client.wait_ready(60)
        for _ in range(200):
            client.rescore([LIST])
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events.count("call answered") == 200
    assert events[-1] == "stopped"
    assert events.index("listening") < events.index("call answered") < events.index("stopping")


def test_slow_reader_delays_nobody_and_gets_whole_lines(ngram_bundle, tmp_path):
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with serve(ngram_bundle, tmp_path, stderr=writing) as process, connect(tmp_path) as client:
        os.close(writing)
        client.wait_ready(60)
        for _ in range(100):
            client.rescore([LIST])
        process.send_signal(signal.SIGTERM)
        with os.fdopen(reading) as stream:
            lines = stream.read().splitlines()
        assert process.wait(30) == 0
    events = [json.loads(line)["event"] for line in lines]
    assert events.count("call answered") == 100
    assert events[-1] == "stopped"


def test_line_about_a_setting_that_is_wrong_still_arrives(ngram_bundle, tmp_path):
    command = (*SERVE_COMMAND, "--bundle", str(ngram_bundle), "--host", "192.0.2.1", "--allow-insecure")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("rescorer: ")

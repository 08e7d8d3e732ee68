"""Whatever bytes come in, every reader gives lists and errors of this project, and nothing else."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tools.fuzz.targets import ODD_BYTES, SEPARATOR, TARGETS

pytestmark = pytest.mark.slow


@st.composite
def mutations(draw: st.DrawFn, seed: bytes) -> bytes:
    """Valid files with some bytes replaced, deleted or doubled, and perhaps compressed and truncated."""
    data = bytearray(seed * draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 8)))
        doubled = st.just(bytes(data[start:end]) * 2)
        data[start:end] = draw(st.sampled_from(ODD_BYTES) | doubled | st.binary(max_size=4))
    if draw(st.booleans()):
        return gzip.compress(bytes(data))[: draw(st.none() | st.integers(0, 60))]
    return bytes(data)


def run_target(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        TARGETS[name].run(data, Path(folder))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60)
@given(data=st.data())
def test_readers_accept_or_reject_damaged_files(name, data):
    target = TARGETS[name]
    parts = data.draw(st.sampled_from(target.seeds)).split(SEPARATOR, len(target.files) - 1)
    damaged = SEPARATOR.join(data.draw(mutations(part) | st.binary(max_size=40)) for part in parts)
    run_target(name, damaged)


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b"{" + b'"a":{' * 50_000)
def test_detects_or_rejects_any_file(data):
    run_target("detect", data)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed: make fuzz installs it")
def test_fuzzer_runs_on_every_reader(tmp_path):
    command = [sys.executable, "-m", "tools.fuzz.readers", "--all", "--runs", "300", "--folder", tmp_path]
    completed = subprocess.run(command, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    found = dict(re.findall(r"^(\S+) +(\d+) executions .* ok$", completed.stdout, re.MULTILINE))
    assert found.keys() == TARGETS.keys()
    assert all(int(executions) >= 300 for executions in found.values())

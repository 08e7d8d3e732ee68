"""Whatever bytes come, every reader answers with lists and faults of ours, and nothing else."""

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

from tools.fuzz.targets import ODDITIES, SEPARATOR, TARGETS

pytestmark = pytest.mark.slow


@st.composite
def mutations(draw: st.DrawFn, seed: bytes) -> bytes:
    """A good file with some of its bytes replaced, taken out or doubled, or all of it compressed and cut."""
    data = bytearray(seed * draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 8)))
        twice = st.just(bytes(data[start:end]) * 2)
        data[start:end] = draw(st.sampled_from(ODDITIES) | twice | st.binary(max_size=4))
    if draw(st.booleans()):
        return gzip.compress(bytes(data))[: draw(st.none() | st.integers(0, 60))]
    return bytes(data)


def run(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        TARGETS[name].run(data, Path(folder))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(name, data):
    parts = data.draw(st.sampled_from(TARGETS[name].seeds)).split(SEPARATOR, len(TARGETS[name].places) - 1)
    run(name, SEPARATOR.join(data.draw(mutations(part) | st.binary(max_size=40)) for part in parts))


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b"{" + b'"a":{' * 50_000)
def test_any_file_is_told_or_refused(data):
    run("detect", data)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed: make fuzz installs it")
def test_the_fuzzer_runs_on_every_reader(tmp_path):
    command = [sys.executable, "-m", "tools.fuzz.readers", "--all", "--runs", "300", "--folder", tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = dict(re.findall(r"^(\S+) +(\d+) executions .* ok$", ran.stdout, re.MULTILINE))
    assert found.keys() == TARGETS.keys()
    assert all(int(executions) >= 300 for executions in found.values())

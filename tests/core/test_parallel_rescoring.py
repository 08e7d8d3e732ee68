"""The file command in several processes: the answers of one, in their order, and no fault lost on the way."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.cli import app
from rescorer.cli.rescore import load_rescoring
from rescorer.errors import BundleError, FormatError, InvalidList, Overloaded, RescorerError, ScoringError
from rescorer.file_rescoring import rescore_lists
from rescorer.parallel_rescoring import RescoringProcesses, pack, unpack
from rescorer.types import Hypothesis, NBestList, Weights
from tests.support.servers import wait_until

HYPOTHESIS = {"text": "the cat sat", "scores": {"acoustic": 0}}
WORDS = ("the", "cat", "sat", "on", "mat", "zebra")


@given(
    st.lists(st.builds(Hypothesis, st.text(), st.dictionaries(st.text(), st.integers()), st.booleans())),
    st.dictionaries(st.text(), st.tuples(st.floats(allow_nan=False))),
    st.none() | st.text(),
)
def test_a_list_is_the_same_once_unpacked(hypotheses, streams, reference):
    sent = NBestList("u1", tuple(hypotheses), streams, "before", reference, "speaker", {"a": 1})
    assert unpack(pickle.loads(pickle.dumps(pack(sent)))) == sent


@pytest.mark.parametrize(
    "fault",
    [
        InvalidList("wrong", list_id="u1", hypothesis=3, field="text", file="a.jsonl", line=7),
        FormatError("wrong", file="a", line=2, field="x"),
        Overloaded("later", retry_after_s=2.0),
        ScoringError("broken"),
    ],
)
def test_a_fault_is_the_same_once_unpickled(fault: RescorerError):
    found = pickle.loads(pickle.dumps(fault))
    assert (type(found), str(found), vars(found)) == (type(fault), str(fault), vars(fault))


def test_two_processes_answer_as_one(bundle: Path, tmp_path: Path):
    texts = [" ".join(WORDS[: 1 + i % 6]) for i in range(60)]
    lines = [
        json.dumps(
            {"id": f"u{i}", "hypotheses": [{"text": text, "scores": {"acoustic": -i}}, {"text": "the"}]}
        )
        for i, text in enumerate(texts)
    ]
    lines[7] = "{broken"
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    outputs = []
    for processes in (1, 2):
        out = tmp_path / f"out{processes}.jsonl"
        command = ["rescore", str(tmp_path / "in.jsonl"), "-o", str(out), "--bundle", str(bundle), "--json"]
        done = CliRunner().invoke(app, [*command, "--batch-words", "50", "--processes", str(processes)])
        assert done.exit_code == 1, done.output
        answers = [json.loads(line) for line in out.read_text().splitlines()]
        outputs.append((answers, Path(f"{out}.rejects").read_text().replace(str(out), ""), done.stderr))
    assert outputs[0] == outputs[1]


def test_faults_of_a_process_are_told(tmp_path: Path, bundle: Path):
    weights, lists = Weights(), [NBestList("u1", (Hypothesis("the cat"),))]
    missing = partial(load_rescoring, tmp_path / "none", "cpu", "float32", 100, weights, False, "jsonl")
    with (
        RescoringProcesses(missing, 1) as processes,
        pytest.raises(BundleError, match="no such bundle folder"),
    ):
        rescore_lists(processes, lists, print, io.StringIO())
    with (
        RescoringProcesses(partial(die, bundle), 1) as processes,
        pytest.raises(ScoringError, match="one of 1 scoring processes ended"),
    ):
        rescore_lists(processes, lists, print, io.StringIO())


def test_processes_that_cannot_be_started_are_told_and_those_that_were_end(monkeypatch, tmp_path: Path):
    started: list[SpawnProcess] = []
    start = SpawnProcess.start

    def start_the_first(process: SpawnProcess) -> None:
        if started:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        started.append(process)
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", start_the_first)
    make = partial(load_rescoring, tmp_path / "none", "cpu", "float32", 100, Weights(), False, "jsonl")
    lists = [NBestList(name, (Hypothesis("the cat"),)) for name in ("u1", "u2", "u3")]
    with (
        RescoringProcesses(make, 3, batch_words=1) as processes,
        pytest.raises(ScoringError, match="3 scoring processes cannot be started: Resource temporarily"),
    ):
        rescore_lists(processes, lists, print, io.StringIO())
    assert [process.exitcode for process in started] == [0]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_processes_end_with_the_one_that_hands_out(bundle: Path):
    """Also where that is killed, as a scheduler does that gives it no more time."""
    command = [sys.executable, "-m", "rescorer.cli", "rescore", "-", "--bundle", bundle, "--processes", "2"]
    pipe = subprocess.PIPE
    options = [*command, "--batch-words", "5", "--quiet"]
    with subprocess.Popen(options, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as killed:
        for i in range(50):
            print(json.dumps({"id": f"u{i}", "hypotheses": [HYPOTHESIS]}), file=killed.stdin)
        killed.stdin.flush()
        assert killed.stdout.readline()
        assert len(in_session(killed.pid)) >= 3
        killed.kill()
    wait_until(lambda: not in_session(killed.pid), 30)


def in_session(leader: int) -> list[str]:
    """Processes that a session still has."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            state, _, _, session = each.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(each.parent.name)
    return found


def die(bundle: Path) -> None:
    """As a process ends that the system takes for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)

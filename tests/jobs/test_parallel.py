"""Rescoring in several processes gives the results of one process, in order, and reports every error."""

from __future__ import annotations

import errno
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
from rescorer.errors import BundleError, FormatError, InvalidList, Overloaded, RescorerError, ScoringError
from rescorer.jobs.files import RescorerLoader, rescore_lists
from rescorer.jobs.processes import ProcessPoolRescorer, pack, unpack
from rescorer.scoring.options import RescoreOptions
from rescorer.types import Hypothesis, NBestList, Weights
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow

HYPOTHESIS = {"text": "the cat sat", "scores": {"acoustic": 0}}
WORDS = ("the", "cat", "sat", "on", "mat", "zebra")


@given(
    st.lists(st.builds(Hypothesis, st.text(), st.dictionaries(st.text(), st.integers()), st.booleans())),
    st.dictionaries(st.text(), st.tuples(st.floats(allow_nan=False))),
    st.none() | st.text(),
)
def test_pack_round_trip(hypotheses, streams, reference):
    nbest = NBestList("u1", tuple(hypotheses), streams, "before", reference, "speaker", {"a": 1})
    assert unpack(pickle.loads(pickle.dumps(pack(nbest)))) == nbest


@pytest.mark.parametrize(
    "error",
    [
        InvalidList("wrong", list_id="u1", hypothesis=3, field="text", file="a.jsonl", line=7),
        FormatError("wrong", file="a", line=2, field="x"),
        Overloaded("later", retry_after_s=2.0),
        ScoringError("broken"),
    ],
)
def test_error_pickle_round_trip(error: RescorerError):
    unpickled = pickle.loads(pickle.dumps(error))
    assert (type(unpickled), str(unpickled), vars(unpickled)) == (type(error), str(error), vars(error))


def test_two_processes_give_the_results_of_one(bundle: Path, tmp_path: Path):
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
        done = CliRunner().invoke(app, [*command, "--batch-words", "50", "--workers", str(processes)])
        assert done.exit_code == 1, done.output
        results = [json.loads(line) for line in out.read_text().splitlines()]
        outputs.append((results, Path(f"{out}.rejects").read_text().replace(str(out), ""), done.stderr))
    assert outputs[0] == outputs[1]


def test_raises_errors_of_a_process(tmp_path: Path, bundle: Path):
    weights, lists = Weights(), [NBestList("u1", (Hypothesis("the cat"),))]
    missing = RescorerLoader(tmp_path / "none", RescoreOptions(weights))
    with (
        ProcessPoolRescorer(missing, 1) as rescorer,
        pytest.raises(BundleError, match="no such bundle folder"),
    ):
        rescore_lists(rescorer, lists, print)
    with (
        ProcessPoolRescorer(partial(kill_process, bundle), 1) as rescorer,
        pytest.raises(ScoringError, match="one of 1 scoring processes ended unexpectedly"),
    ):
        rescore_lists(rescorer, lists, print)


def test_ends_started_processes_if_others_cannot_start(monkeypatch, tmp_path: Path):
    started: list[SpawnProcess] = []
    start = SpawnProcess.start

    def start_only_one(process: SpawnProcess) -> None:
        if started:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        started.append(process)
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", start_only_one)
    load = RescorerLoader(tmp_path / "none", RescoreOptions(Weights()))
    lists = [NBestList(name, (Hypothesis("the cat"),)) for name in ("u1", "u2", "u3")]
    with (
        ProcessPoolRescorer(load, 3, batch_words=1) as rescorer,
        pytest.raises(ScoringError, match="cannot start 3 scoring processes: Resource temporarily"),
    ):
        rescore_lists(rescorer, lists, print)
    assert [process.exitcode is not None for process in started] == [True]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_processes_end_when_their_parent_is_killed(bundle: Path):
    """Schedulers, for example, kill processes that exceed their time limit."""
    command = [sys.executable, "-m", "rescorer.cli", "rescore", "-", "--bundle", bundle, "--workers", "2"]
    pipe = subprocess.PIPE
    options = [*command, "--batch-words", "5", "--quiet"]
    with subprocess.Popen(options, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as killed:
        for i in range(50):
            print(json.dumps({"id": f"u{i}", "hypotheses": [HYPOTHESIS]}), file=killed.stdin)
        killed.stdin.flush()
        assert killed.stdout.readline()
        assert len(processes_of_session(killed.pid)) >= 3
        killed.kill()
    wait_until(lambda: not processes_of_session(killed.pid), 30)


def processes_of_session(leader: int) -> list[str]:
    """Return the ids of the processes of a session that are still running."""
    running = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has just ended
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                running.append(path.parent.name)
    return running


def kill_process(bundle: Path) -> None:
    """Kill the current process, as the system does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)

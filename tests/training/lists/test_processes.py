"""Check that tasks survive crashes and hangs of other tasks."""

from __future__ import annotations

import subprocess
import time
from types import SimpleNamespace

import pytest

from rescorer_training.lists import speech as processes
from rescorer_training.lists.speech import TaskError, run_tasks
from tests.support.fake_speech import make_sleeper, make_square


def test_tasks_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only while the task that hangs is being done, so that a slow start is no failure."""
    hangs = False
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() if hangs else 0.0)
    monkeypatch.setattr(processes, "time", clock)
    results = {}
    for task, result in run_tasks(make_square, [3, 0, 13, 4, -1, 5], 1, timeout_s=1.5):
        results[task] = result
        hangs = task == 4  # the next one is negative
    assert {task: results[task] for task in (3, 4, 5)} == {3: 9, 4: 16, 5: 25}
    assert results[13] == TaskError("unlucky")
    assert results[0] == TaskError("the process crashed")
    assert results[-1] == TaskError("took longer than 1.5 s")


def test_several_processes_give_the_same_results() -> None:
    assert dict(run_tasks(make_square, range(1, 12), 2, timeout_s=60.0)) == {n: n * n for n in range(1, 12)}


def test_no_tasks_give_no_results() -> None:
    assert list(run_tasks(make_square, [], 2, timeout_s=60.0)) == []


def test_programs_of_a_task_that_takes_too_long_are_killed(tmp_path, monkeypatch) -> None:
    """The task takes too long as soon as its program runs."""
    file = tmp_path / "pid"
    clock = SimpleNamespace(monotonic=lambda: 1.0 if file.exists() and file.read_text() else 0.0)
    monkeypatch.setattr(processes, "time", clock)
    assert dict(run_tasks(make_sleeper, [str(file)], 1, timeout_s=0.2)) == {
        str(file): TaskError("took longer than 0.2 s")
    }
    pid = file.read_text()
    for _ in range(100):  # until init has taken note of its end
        states = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout
        if not states.strip() or states.startswith("Z"):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still runs: {states}")

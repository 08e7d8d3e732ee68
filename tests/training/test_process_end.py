"""A process that ``torchrun`` started ends with its status, its output written, and without finalisation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, sys
from rescorer_training.progress import end_without_finalisation
atexit.register(print, "finalised")
with end_without_finalisation():
    print("done")
    if sys.argv[1:]:
        sys.exit(eval(sys.argv[1]))
"""


def run(*arguments: str, worker: bool) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "training")}
    environment.pop("TORCHELASTIC_RUN_ID", None)
    if worker:
        environment["TORCHELASTIC_RUN_ID"] = "toy"
    command = [sys.executable, "-c", PROGRAM, *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("0",), 0), (("None",), 0), (("3",), 3)])
def test_worker_ends_with_its_status(arguments, status):
    assert run(*arguments, worker=True) == (status, "done\n")
    assert run(*arguments, worker=False) == (status, "done\nfinalised\n")


def test_message_is_printed():
    status, output = run("'no text'", worker=True)
    assert status == 1
    assert "no text" in output


def test_traceback_is_printed():
    status, output = run("1 / 0", worker=True)
    assert status == 1
    assert "ZeroDivisionError" in output

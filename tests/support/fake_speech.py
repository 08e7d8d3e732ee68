"""A synthesiser, a recogniser and tasks that fail as tests require; new processes can import them."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rescorer_training.lists.speech import TaskError
from rescorer_training.lists.text import Candidate

CALLS = "RESCORER_TEST_CALLS"
"""Environment variable with a file to which each recognised sentence adds a line."""

FLITE = """#!/usr/bin/env python3
import sys, wave
text, path = sys.argv[sys.argv.index("-t") + 1], sys.argv[sys.argv.index("-o") + 1]
if "crash" in text:
    sys.exit("7 is unlucky" if "words" in text else 7)
frames = b"" if "silence" in text else b"".join(
    (200 + 7 * i + 31 * ord(c)).to_bytes(2, "little") for c in text for i in range(50))
with wave.open(path, "wb") as file:
    file.setnchannels(1), file.setsampwidth(2), file.setframerate(16000), file.writeframes(frames)
"""


def install_flite(folder: Path) -> None:
    """Write a program ``flite`` whose sound depends on the text only."""
    path = folder / "flite"
    path.write_text(FLITE)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class FakeRecogniser:
    """Finds hypotheses that depend on the samples only, and records its calls."""

    def recognise(self, samples: np.ndarray, depth: int, folder: Path) -> list[Candidate]:
        with open(os.environ[CALLS], "a") as calls:
            calls.write("call\n")
        total = int(np.abs(samples.astype(np.int64)).sum())
        if total % 5 == 0:
            return []
        return [Candidate((f"w{total % 97}", f"v{i}"), -float(total % 1000) - i, -2.0) for i in range(depth)]


def make_square() -> Callable[[int], int | TaskError]:
    """A function of tasks: squares; 13 is refused, 0 ends the process, and negative numbers hang."""

    def square(number: int) -> int | TaskError:
        if number == 13:
            return TaskError("unlucky")
        if number == 0:
            os._exit(3)
        if number < 0:
            time.sleep(60)
        return number * number

    return square


def make_sleeper() -> Callable[[str], int]:
    """A function that starts a program that hangs, writes its process id to a file, and waits for it."""

    def sleep(path: str) -> int:
        with subprocess.Popen(["sleep", "60"]) as program:
            Path(path).write_text(str(program.pid))
        return 0

    return sleep

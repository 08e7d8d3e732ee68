"""The program ``rescorer-train``: how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from rescorer_training.cli import exit_on_sigterm


def test_sigterm_removes_temporary_folders(tmp_path):
    previous = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop, exit_on_sigterm(), tempfile.TemporaryDirectory(dir=tmp_path):
        os.kill(os.getpid(), signal.SIGTERM)
    assert (stop.value.code, list(tmp_path.iterdir())) == (143, [])
    assert signal.getsignal(signal.SIGTERM) is previous


def test_an_output_on_a_full_disk_is_one_line_on_stderr():
    with open("/dev/full", "wb") as full:
        program = (sys.executable, "-m", "rescorer_training", "perplexity", "--help")
        result = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True)
    expected = "rescorer-train: the output cannot be written: No space left on device\n"
    assert (result.returncode, result.stderr) == (2, expected)

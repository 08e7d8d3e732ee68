"""The program ``rescorer-train``: how it ends."""

from __future__ import annotations

import subprocess
import sys


def test_an_output_on_a_full_disk_is_one_line_on_stderr():
    with open("/dev/full", "wb") as full:
        program = (sys.executable, "-m", "rescorer_training", "perplexity", "--help")
        result = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True)
    expected = "rescorer-train: the output cannot be written: No space left on device\n"
    assert (result.returncode, result.stderr) == (2, expected)

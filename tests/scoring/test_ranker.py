"""The light half of a rescorer: what it needs, and what a server's front end needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("module", ["rescorer.extensions", "rescorer.service.server", "rescorer.client"])
def test_needs_neither_torch_nor_kenlm(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'kenlm'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["rescorer.service.server", "rescorer.pipeline", "rescorer.cli"])
def test_loads_no_library_of_statistics(module):
    # every command loads all of rescorer.cli, a server too, and SciPy takes 40 MB and a second
    code = f"import sys, {module}; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

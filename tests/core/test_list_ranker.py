"""The light half of a rescorer: what it needs, and what a server's front end needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("module", ["rescorer.list_ranker", "rescorer.service.server", "rescorer.client"])
def test_needs_neither_torch_nor_kenlm(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'kenlm'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""Make the processes that a test starts load chosen models slowly, holding Python's lock as KenLM does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PATCH = """
import ctypes, os, sys

if "rescorer.service.workers.host" in sys.orig_argv:
    from rescorer.pipeline import TrieScorer

    load = TrieScorer.load

    def load_slowly(folder, *args, **options):
        with open(os.environ["TEST_SLOW_MODELS"]) as stream:
            for part, seconds in (line.split() for line in stream):
                if part in f"{folder}/":
                    ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))  # keeps the lock, unlike time.sleep
        return load(folder, *args, **options)

    TrieScorer.load = load_slowly
"""


class SlowLoading:
    """Models that load slowly in all processes that are started from now on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "patch").mkdir()
        (folder / "patch" / "sitecustomize.py").write_text(PATCH)
        self._list = folder / "slow_models"
        self._list.write_text("")
        monkeypatch.setenv("TEST_SLOW_MODELS", str(self._list))
        inherited = os.environ.get("PYTHONPATH")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder / "patch"), inherited))))

    def delay(self, label: str, seconds: float) -> None:
        """Have the model files of a bundle load slowly; 0: as usual."""
        self._list.write_text(f"/{label}/ {seconds}\n")

"""The models of a worker process: the time that scores of a job say, and memory that is missing."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

from rescorer.errors import BundleError
from rescorer.frames import ScoreJob
from rescorer.runtime import pause
from rescorer.service.workers.host import WARM_UP, LoadedModels


class PausingScorer:
    """A scorer that pauses once while it scores."""

    def __init__(self) -> None:
        self.encoders = {}

    def readers(self, *, surface):
        return ()

    def score(self, trie, only=(), encoders=None, *, surface=False, words=()):
        pause()
        return {}


def test_the_time_of_a_job_that_overtakes_is_not_counted_twice(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    models = LoadedModels("cpu", 1, lambda folder, device: PausingScorer())
    models.load("m/1", Path("m/1"))

    def overtake():
        now[0] += 5.0

    scores = models.score(ScoreJob("m/1", WARM_UP), overtake)
    assert (now[0], sum(scores.seconds.values())) == (5.0, 0.0)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError(
            "unable to mmap 231513248 bytes from file </proc/self/fd/4>: Cannot allocate memory (12)"
        ),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_says_that_a_model_needs_too_much_memory(error):
    def load(folder, device):
        raise error

    with pytest.raises(BundleError, match=r"m/1: needs more memory than there is on cpu"):
        LoadedModels("cpu", 1, load).load("m/1", Path("m/1"))


def test_other_errors_of_loading_remain():
    def load(folder, device):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        LoadedModels("cpu", 1, load).load("m/1", Path("m/1"))

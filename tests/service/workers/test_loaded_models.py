"""The models of a worker process: what the scores of a job say about its time."""

from __future__ import annotations

import time
from pathlib import Path

from rescorer.runtime import pause
from rescorer.service.workers.frames import ScoreJob
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

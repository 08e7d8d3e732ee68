"""Run shards in a process of a cluster, which reports while it does."""

from __future__ import annotations

import gc
import os
import socket
from contextlib import suppress
from threading import Condition

from rescorer.errors import ConfigError, ModelError, RescorerError
from rescorer.files.rescoring import FileSummary
from rescorer.shards.record import Record
from rescorer.shards.runner import ShardRunner
from rescorer.shards.store import Store
from rescorer.shards.worker import Job

Progress = tuple[int, FileSummary]
"""Number of items since the last report, and the summary of the shard so far."""


class ShardActor:
    """What a cluster runs in a process: ``report`` may be called while another method runs.

    Args:
        folder: working folder of the command, to which names of files may be relative.
        threads: CPU threads of the process.
    """

    def __init__(self, folder: str, store: Store, job: Job, threads: int) -> None:
        self._folder = folder
        self._arguments = store, job, threads
        self._runner: ShardRunner | None = None
        self._changed = Condition()
        self._n_items, self._summary = 0, FileSummary()
        self._is_running = False

    def find_node(self) -> str:
        """Name of the node; the answer shows that the actor has its resources."""
        return socket.gethostname()

    def load(self) -> RescorerError | None:
        """Load the models; return an error if this is impossible."""
        with suppress(OSError):  # needed for relative names only, whose errors say what is missing
            os.chdir(self._folder)
        try:
            self._runner = ShardRunner.load(*self._arguments)
        except (ConfigError, ModelError) as error:
            return error
        gc.freeze()  # as spare_existing_objects does, until the process ends
        return None

    def run(self, index: int) -> tuple[Record | RescorerError, Progress]:
        """Run a shard; return its record or error, and the progress that was not reported yet."""
        assert self._runner is not None
        with self._changed:
            self._n_items, self._summary, self._is_running = 0, FileSummary(), True
        result = self._runner.run(index, self._note)
        with self._changed:
            self._is_running = False
            self._changed.notify_all()
        return result, self._take()

    def report(self, wait_s: float) -> Progress:
        """Return the progress since the last report when some time has passed, or when the shard is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_running, wait_s)
        return self._take()

    def _note(self, n_items: int, summary: FileSummary) -> None:
        with self._changed:
            self._n_items, self._summary = self._n_items + n_items, summary

    def _take(self) -> Progress:
        with self._changed:
            n_items, self._n_items = self._n_items, 0
            return n_items, self._summary

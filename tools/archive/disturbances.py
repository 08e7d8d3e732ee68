"""Run shards while workers and the main process are killed, and the disk fills up."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rescorer.shards.store import RECORDS
from tools.archive.commit_kills import AFTER_RECORD, BEFORE_RECORD, RUN
from tools.archive.usage import find_workers

POLL_S = 0.02
FULL_BYTES = 4096
"""Size beyond which no file can grow on a full disk: records fit, output does not."""
MAX_RESUMES = 20
EXIT_FULL, EXIT_GIVEN_UP = 3, 5
"""Exit codes of ``rescorer rescore`` on a full disk, and if the workers of a shard were killed too often."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens while an archive is rescored."""

    name: str
    is_sharded: bool = True
    kills_workers: bool = False
    """Whether workers are killed: at random moments, and twice around the commit of a shard."""
    kills_driver: bool = False
    fills_disk: bool = False


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("plain", is_sharded=False),
        Scenario("shards"),
        Scenario("worker-kills", kills_workers=True),
        Scenario("driver-kills", kills_driver=True),
        Scenario("full-disk", fills_disk=True),
        Scenario("everything", kills_workers=True, kills_driver=True, fills_disk=True),
    )
}


@dataclass(frozen=True, slots=True)
class Timing:
    """How often and when things happen."""

    worker_kills: int = field(default=10, metadata={"help": "Workers to kill at random moments."})
    driver_kills: int = field(default=2, metadata={"help": "Times to kill the main process."})
    last_share: float = field(
        default=0.9, metadata={"help": "Share of committed shards after which nothing more happens, 0 to 1."}
    )
    max_delay_s: float = field(
        default=1.0, metadata={"help": "Longest time, drawn at random, by which something happens later."}
    )
    seed: int = field(default=1, metadata={"help": "Random seed."})


class ShardRun:
    """Runs a command that rescores in shards, disturbs it, and resumes it until all is committed.

    Args:
        options: those of ``rescorer rescore``, without ``-o`` and ``--resume``.
        folder: output of the shards, which does not exist.
    """

    def __init__(
        self, options: Sequence[str], folder: Path, n_shards: int, scenario: Scenario, timing: Timing
    ) -> None:
        self._program = ["-c", RUN] if scenario.kills_workers else ["-m", "rescorer.cli"]
        self._arguments = ["rescore", *options, "-o", str(folder), "--shards", str(n_shards)]
        self._folder, self._n_shards, self._scenario, self._timing = folder, n_shards, scenario, timing
        self._log = folder.with_suffix(".log")
        self._rng = random.Random(f"{scenario.name} {timing.seed}")
        self.kills = 0
        """Number of processes that were killed."""
        self.resumes = 0
        self.faults: list[str] = []
        self._was_full = False

    def run(self) -> None:
        """Run until the command ends with success."""
        events = self._plan_events()
        self._process = self._start()
        try:
            while True:
                code = self._process.poll()
                if code is not None and self._is_over(code):
                    break
                if events and self._committed_share >= events[0][0]:
                    time.sleep(self._rng.uniform(0, self._timing.max_delay_s))
                    events.popleft()[1]()
                time.sleep(POLL_S)
        finally:
            self._process.kill()
            self._process.wait()
        if self._scenario.kills_workers:
            self._count_commit_kills()
        if self._scenario.fills_disk and not self._was_full:
            self.faults.append("the disk was never full: the archive is too small")
        if events:
            self.faults.append(f"{len(events)} disturbances did not happen: the archive is too small")

    def _plan_events(self) -> deque[tuple[float, Callable[[], None]]]:
        """Pairs of a share of committed shards and what happens then, each kind of it spread evenly."""
        scenario, timing = self._scenario, self._timing
        kinds = (
            (scenario.kills_workers * timing.worker_kills, self._kill_worker),
            (scenario.kills_driver * timing.driver_kills, self._kill_driver),
            (int(scenario.fills_disk), self._fill_disk),
        )
        events = [
            (timing.last_share * (place + 0.5) / count, event)
            for count, event in kinds
            for place in range(count)
        ]
        return deque(sorted(events, key=lambda event: event[0]))

    def _start(self) -> subprocess.Popen[bytes]:
        resume = ["--resume"] if self._folder.exists() else []
        with open(self._log, "wb") as log:
            return subprocess.Popen([sys.executable, *self._program, *self._arguments, *resume], stderr=log)

    def _is_over(self, code: int) -> bool:
        """Whether nothing is left to do; resumes a command that failed."""
        scenario = self._scenario
        expected = {
            -signal.SIGKILL: scenario.kills_driver,
            EXIT_FULL: scenario.fills_disk,
            EXIT_GIVEN_UP: scenario.kills_workers,
        }
        if code and not expected.get(code):
            text = self._log.read_text(errors="replace").strip()
            self.faults.append(f"exit code {code}: {text[-500:]}")
        self._was_full |= code == EXIT_FULL
        if code == 0 or self.resumes >= MAX_RESUMES:
            return True
        self.resumes += 1
        self._process = self._start()
        return False

    @property
    def _committed_share(self) -> float:
        with suppress(FileNotFoundError):
            return len(os.listdir(self._folder / RECORDS)) / self._n_shards
        return 0.0

    def _kill_worker(self) -> None:
        """Kill a worker as soon as there is one."""
        while self._process.poll() is None:
            if workers := find_workers(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(self._rng.choice(workers), signal.SIGKILL)
                    self.kills += 1
                    return
            time.sleep(POLL_S)
        self.faults.append("no worker was left to kill: the archive is too small")

    def _kill_driver(self) -> None:
        self._process.kill()
        self._process.wait()  # so that what happens next happens to the resumed one
        self.kills += 1

    def _fill_disk(self) -> None:
        """Let no file of the processes grow any more, as a quota would: their next write of output fails."""
        for pid in (self._process.pid, *find_workers(self._process.pid)):
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, hard))

    def _count_commit_kills(self) -> None:
        for mark in (BEFORE_RECORD, AFTER_RECORD):
            if (self._folder / mark).exists():
                self.kills += 1
            else:
                self.faults.append(f"nothing was {mark.replace('-', ' ')}")

"""Owns what a server's processes hold while a run goes on: memory, descriptors and threads, and their growth.

Linux only: all of it is read from ``/proc``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.load.server import family, rss_bytes, scorers

WARM_UP = 0.2
"""Part of a run that does not count: caches fill, and the heap finds its size."""
SAMPLES = 3
"""The fewest that a slope is drawn through."""


@dataclass(frozen=True, slots=True)
class Held:
    """By one process at one time."""

    process: str
    """``server`` or ``scorer``."""
    rss_mb: float
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Grown:
    """What has become of a server's processes."""

    seconds: float
    """After the warm-up."""
    rss_mb_begin: float
    """At the end of the warm-up, of all processes together."""
    rss_mb_end: float
    rss_mb_max: float
    rss_mb_an_hour: float
    """Slope of the line through all samples after the warm-up."""
    rss_mb_an_hour_last_half: float
    """Of the last half of those: less than the other where memory is settling."""
    begin: tuple[Held, ...]
    """At the end of the warm-up."""
    end: tuple[Held, ...]

    @property
    def descriptors(self) -> int:
        """How many more there are."""
        return sum(each.descriptors for each in self.end) - sum(each.descriptors for each in self.begin)

    @property
    def threads(self) -> int:
        return sum(each.threads for each in self.end) - sum(each.threads for each in self.begin)


class Growth:
    """Watches a process and its children between entering and leaving; ``grown`` then tells.

    Args:
        every_s: between samples.
    """

    def __init__(self, pid: int, every_s: float = 1.0) -> None:
        self._pid, self._every_s = pid, every_s
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._watched, daemon=True)
        self._samples: list[tuple[float, tuple[Held, ...]]] = []

    def __enter__(self) -> Growth:
        self._watch.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._watch.join()

    def grown(self) -> Grown:
        """From the samples taken so far."""
        warm = self._samples[int(WARM_UP * len(self._samples)) :]
        at_s = np.array([at for at, _ in warm])  # (S,)
        rss_mb = np.array([sum(each.rss_mb for each in held) for _, held in warm])  # (S,)
        half = len(warm) // 2
        return Grown(
            seconds=float(at_s[-1] - at_s[0]),
            rss_mb_begin=float(rss_mb[0]),
            rss_mb_end=float(rss_mb[-1]),
            rss_mb_max=float(rss_mb.max()),
            rss_mb_an_hour=slope(at_s, rss_mb) * 3600,
            rss_mb_an_hour_last_half=slope(at_s[half:], rss_mb[half:]) * 3600,
            begin=warm[0][1],
            end=warm[-1][1],
        )

    def _watched(self) -> None:
        while True:
            self._samples.append((time.monotonic(), held_by(self._pid)))
            if self._over.wait(self._every_s):
                self._samples.append((time.monotonic(), held_by(self._pid)))
                return


def slope(xs: np.ndarray, ys: np.ndarray) -> float:
    """Of the line of least squares; 0 where there are too few points.

    >>> slope(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
    2.0
    """
    centred = xs - xs.mean()  # (S,)
    if len(xs) < SAMPLES or not centred.any():
        return 0.0
    return float(centred @ ys / (centred @ centred))


def held_by(pid: int) -> tuple[Held, ...]:
    """By a server and each of its scorers; those that end meanwhile are left out."""
    scoring = scorers(pid)
    found = []
    for each in family(pid):
        try:
            descriptors = len(list(Path(f"/proc/{each}/fd").iterdir()))
            threads = len(list(Path(f"/proc/{each}/task").iterdir()))
        except OSError:
            continue
        process = "server" if each == pid else "scorer" if each in scoring else "child"
        found.append(Held(process, rss_bytes(each) / 1e6, descriptors, threads))
    return tuple(found)

"""Measure what sharding costs: processor time of one worker against that of the plain command, in pairs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

from scipy import stats

from rescorer.errors import ScoringError
from tools.archive.checking import read_lines
from tools.archive.scenarios import COMMAND

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Pair:
    """Processor seconds of both ways to rescore the same lists."""

    plain_s: float
    shards_s: float

    @property
    def ratio(self) -> float:
        return self.shards_s / self.plain_s


@dataclass(frozen=True, slots=True)
class MedianRatio:
    """Median of the ratios, and the interval between two of them that contains the true median."""

    ratio: float
    low: float
    high: float
    coverage: float
    """Probability that such an interval contains the median, whatever the distribution."""


def measure_pairs(
    lists: Path, folder: Path, scoring: Sequence[str], shards: int, pairs: int
) -> Iterator[Pair]:
    """Yield pairs, in which either way is the first in turns.

    Raises:
        ScoringError: a command failed.
    """
    plain, sharded = folder / "plain.jsonl", folder / "shards"
    options = ["rescore", str(lists), *scoring, "--threads", "1", "--quiet"]
    commands = [[*options, "-o", str(plain)], [*options, "-o", str(sharded), "--shards", str(shards)]]
    for number in range(pairs):
        seconds = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            shutil.rmtree(sharded, ignore_errors=True)
            seconds[which] = measure_cpu_s(commands[which])
        yield Pair(*seconds)
    shutil.rmtree(sharded, ignore_errors=True)
    plain.unlink(missing_ok=True)


def measure_cpu_s(arguments: Sequence[str]) -> float:
    """Run a command of ``rescorer``; return its processor time, with that of the processes it waited for."""
    process = subprocess.Popen([*COMMAND, *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ScoringError(f"exit code {process.returncode} of {' '.join(arguments)}")
    return usage.ru_utime + usage.ru_stime


def copy_lists(archive: Sequence[Path], count: int, target: Path) -> Path:
    """Write the first lists of an archive to a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as stream:
        stream.writelines(islice(read_lines(archive), count))
    return target


def median_ratio(ratios: Sequence[float]) -> MedianRatio:
    """The median and the narrowest interval of order statistics that covers it with 95 %, or all ratios.

    >>> median_ratio([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    MedianRatio(ratio=1.25, low=1.0, high=1.5, coverage=0.96875)
    """
    ordered, n = sorted(ratios), len(ratios)
    rank = max((k for k in range(1, n // 2 + 1) if _coverage(n, k) >= LEVEL), default=1)
    return MedianRatio(median(ordered), ordered[rank - 1], ordered[-rank], _coverage(n, rank))


def _coverage(n: int, rank: int) -> float:
    """Probability that the median lies between the ``rank``-th smallest and the ``rank``-th largest value."""
    return float(1 - 2 * stats.binom.cdf(rank - 1, n, 0.5))

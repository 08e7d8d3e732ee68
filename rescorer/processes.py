"""Owns the file command's work in several processes: each has the models, takes whole batches and gives back
what is to be written.

One process reads, hands out and writes, in order. On CPUs several processes of one thread each do more than
one process of as many threads, whose small products wait for one another and for Python; on a GPU they share
it, and one's host work goes on while another's kernels run. They are spawned, never forked: torch's threads
would not survive that.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, NamedTuple

from rescorer.errors import ScoringError
from rescorer.files import Answers, Batch, Rescoring, Scorer, lists_of
from rescorer.lm.memory import keep_freed_memory
from rescorer.types import Hypothesis, NBestList

BATCH_WORDS = 16_384
"""Of a batch handed out: large enough for large products, and small enough that all have work to the end."""
AHEAD = 2
"""Batches a process handed out at a time: one is scored, the next waits beside it."""


@dataclass(frozen=True, slots=True)
class RescoringJob:
    """What every process is to do.

    Args:
        make: loads the models; called in the process, once.
        threads: of each process; 0 leaves torch's own choice.
    """

    make: Callable[[], Rescoring]
    threads: int = 1


class RescoringProcesses:
    """A ``rescorer.files.Scorer``; enter it to start the processes, which load their models with the first
    batch that each is handed.

    Args:
        batch_words: of one batch; see ``BATCH_WORDS``.
    """

    def __init__(self, job: RescoringJob, count: int, batch_words: int = BATCH_WORDS) -> None:
        self.batch_words = batch_words
        self.count = count
        self._pool = ProcessPoolExecutor(count, get_context("spawn"), _begin, (job,))

    def __enter__(self) -> RescoringProcesses:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def answered(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Answers]]:
        """Each batch, in its order, with the answers to its lists.

        Raises:
            ScoringError: a process ended.
            RescorerError: whatever it met, such as a bundle that cannot be loaded.
        """
        handed_out: deque[tuple[Batch, Future[Answers]]] = deque()
        try:
            for batch in batches:
                packed = [pack(nbest) for nbest in lists_of(batch)]
                handed_out.append((batch, self._pool.submit(_rescore, packed)))
                if len(handed_out) > AHEAD * self.count:
                    yield self._done(*handed_out.popleft())
            while handed_out:
                yield self._done(*handed_out.popleft())
        except BrokenProcessPool:
            raise ScoringError(
                f"one of {self.count} scoring processes ended, perhaps for want of memory: each has the "
                "models in its own; try fewer"
            ) from None

    def _done(self, batch: Batch, answers: Future[Answers]) -> tuple[Batch, Answers]:
        return batch, answers.result()


@contextmanager
def rescoring(make: Callable[[], Rescoring], count: int, threads: int, batch_words: int) -> Iterator[Scorer]:
    """What does a job: this process where ``count`` is 1, so many others where it is more.

    Args:
        threads: of each process; 0: the cores are shared out.
    """
    if count == 1:
        from rescorer.lm.device import use_threads  # torch, which other commands do not wait for

        keep_freed_memory()
        use_threads(threads)
        yield make()
    else:
        job = RescoringJob(make, threads or max(1, cores() // count))
        with RescoringProcesses(job, count, min(batch_words, BATCH_WORDS)) as processes:
            yield processes


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PackedList(NamedTuple):
    """A list by columns: a hundred objects take ten times as long to pickle."""

    id: str
    texts: list[str]
    fields: list[Mapping[str, Any]]
    """Of the hypotheses; none where all of them have none."""
    partial: list[bool]
    """Likewise."""
    rest: tuple[Any, ...]


def pack(nbest: NBestList) -> PackedList:
    hypotheses = nbest.hypotheses
    fields, partial = [each.fields for each in hypotheses], [each.partial for each in hypotheses]
    return PackedList(
        nbest.id,
        [each.text for each in hypotheses],
        fields if any(fields) else [],
        partial if any(partial) else [],
        (nbest.streams, nbest.context, nbest.reference, nbest.group, nbest.fields),
    )


def unpack(packed: PackedList) -> NBestList:
    n = len(packed.texts)
    columns = packed.texts, packed.fields or [{}] * n, packed.partial or [False] * n
    return NBestList(packed.id, tuple(map(Hypothesis, *columns)), *packed.rest)


_job: RescoringJob | None = None
_rescoring: Rescoring | None = None


def _begin(job: RescoringJob) -> None:
    """First of all in a new process."""
    global _job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that reads and writes ends the others
    from rescorer.lm.device import use_threads  # as above

    keep_freed_memory()
    use_threads(job.threads)
    _job = job


def _rescore(lists: Sequence[PackedList]) -> Answers:
    global _rescoring
    if _rescoring is None and _job is not None:
        _rescoring = _job.make()  # here, not in _begin, whose faults the pool would not hand on
    assert _rescoring is not None
    return _rescoring([unpack(each) for each in lists])

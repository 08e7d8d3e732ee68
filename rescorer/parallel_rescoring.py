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
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, NamedTuple

from rescorer.cpu_count import count_cpus
from rescorer.errors import ScoringError
from rescorer.file_rescoring import Answers, Batch, Rescoring, Scorer, lists_of
from rescorer.lm.malloc import keep_freed_memory
from rescorer.types import Hypothesis, NBestList

BATCH_WORDS = 16_384
"""Of a batch handed out, at most: enough for large products, and few enough that all have work to the end."""
AHEAD = 2
"""Batches a process handed out at a time: one is scored, the next waits beside it."""


class RescoringProcesses:
    """A ``Scorer`` of so many processes, to be entered, so that they end. They start with the
    first batches, and each loads its models with the first that it is handed.

    Args:
        make: loads the models; called in each process, once.
        threads: CPU threads of each; 0: the cores are shared out.
        batch_words: of one batch; ``BATCH_WORDS`` at most.
    """

    def __init__(
        self, make: Callable[[], Rescoring], count: int, threads: int = 0, batch_words: int = BATCH_WORDS
    ) -> None:
        self.batch_words = min(batch_words, BATCH_WORDS)
        self.count = count
        context = get_context("spawn")
        lifeline, self._lifeline = context.Pipe(duplex=False)
        job = (make, threads or max(1, count_cpus() // count), lifeline)
        self._pool = ProcessPoolExecutor(count, context, _begin, job)

    def __enter__(self) -> RescoringProcesses:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._lifeline.close()

    def answered(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Answers]]:
        """Each batch, in its order, with the answers to its lists.

        Raises:
            ScoringError: a process cannot be started, or ended.
            RescorerError: whatever it met, such as a bundle that cannot be loaded.
        """
        handed_out: deque[tuple[Batch, Future[Answers]]] = deque()
        try:
            for batch in batches:
                handed_out.append((batch, self._handed_out(batch)))
                if len(handed_out) > AHEAD * self.count:
                    yield _done(*handed_out.popleft())
            while handed_out:
                yield _done(*handed_out.popleft())
        except BrokenProcessPool:
            raise ScoringError(
                f"one of {self.count} scoring processes ended, perhaps for want of memory: each has the "
                "models in its own; try fewer"
            ) from None

    def _handed_out(self, batch: Batch) -> Future[Answers]:
        packed = [pack(nbest) for nbest in lists_of(batch)]
        try:
            return self._pool.submit(_rescore, packed)
        except OSError as fault:
            reason = fault.strerror or fault
            raise ScoringError(f"{self.count} scoring processes cannot be started: {reason}") from None


def _done(batch: Batch, answers: Future[Answers]) -> tuple[Batch, Answers]:
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
        with RescoringProcesses(make, count, threads, batch_words) as processes:
            yield processes


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


_make: Callable[[], Rescoring] | None = None
_rescoring: Rescoring | None = None


def _begin(make: Callable[[], Rescoring], threads: int, lifeline: Connection) -> None:
    """First of all in a new process, which ends when the other end of ``lifeline`` is closed."""
    global _make
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that reads and writes ends the others
    Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    from rescorer.lm.device import use_threads  # as above

    keep_freed_memory()
    use_threads(threads)
    _make = make


def _end_with(lifeline: Connection) -> None:
    """Whoever is killed tells nobody: a pool's processes would wait for it, with models in their memory."""
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def _rescore(lists: Sequence[PackedList]) -> Answers:
    global _rescoring
    if _rescoring is None and _make is not None:
        _rescoring = _make()  # here, not in _begin, whose faults the pool would not hand on
    assert _rescoring is not None
    return _rescoring([unpack(each) for each in lists])

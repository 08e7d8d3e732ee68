"""Run tasks in several processes of this machine.

``ProcessPool`` starts, feeds, watches and replaces the processes. Its two users are ``ProcessPoolRescorer``,
whose tasks are batches of lists, and ``rescorer.jobs.shards.run_shards``, whose tasks are whole shards.

On CPUs, several processes with one thread each are faster than one process with several threads, whose small
matrix products wait for one another and for Python's interpreter lock. So each process has its own copy of
the models. On a GPU, one process holds the models for all others (``rescorer.jobs.shared_models``), which
feed it from as many cores as there are. Processes are spawned, because torch's threads do not survive a fork.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from rescorer.errors import RescorerError, ScoringError
from rescorer.jobs.files import Batch, BatchRescorer, BatchResults, LineBlock, LocalRescorer, select_lists
from rescorer.jobs.shared_models import SWITCH_S, ModelProcess
from rescorer.pipeline import TrieScorer
from rescorer.runtime import collect_rarely, count_cpus, keep_freed_memory, use_threads
from rescorer.signals import hold_stops, obey_only_sigterm, shield_children
from rescorer.types import Hypothesis, NBestList, PlainHypotheses

END_S = 10
"""Seconds that processes without a task may take to end."""
STOP_S = 2
"""Seconds that processes may take to delete unfinished files after an error or a signal."""

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Task_contra = TypeVar("Task_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


class Worker(Protocol[Task_contra, Answer_co]):
    """Runs tasks in another process, to which it is pickled. It should load models there, not before."""

    def run(self, task: Task_contra, report: Callable[..., None], /) -> Answer_co:
        """Run a task, and return its answer. ``report`` sends its arguments to the parent process at once."""


@dataclass(slots=True, eq=False)
class _Process(Generic[Task]):
    process: BaseProcess
    connection: Connection
    tasks: deque[Task] = field(default_factory=deque)
    """The tasks that the process has, in order. It runs the first one; the others wait."""


class ProcessPool(Generic[Task, Answer]):
    """Processes that run tasks; a context manager that ends them.

    Args:
        worker: runs the tasks of a process; each process gets a copy.
        count: largest number of processes. They are started when there are tasks for them.
        depth: largest number of tasks that a process has at a time: one runs, and the others wait.
        on_report: called in this process with the arguments of each ``report``.
        models: a process that the workers need, which is watched and ended as they are.
    """

    def __init__(
        self,
        worker: Worker[Task, Answer],
        count: int,
        *,
        depth: int = 1,
        on_report: Callable[..., object] = lambda *report: None,
        models: ModelProcess | None = None,
    ) -> None:
        self.count, self.models = count, models
        self._worker, self._depth, self._on_report = worker, depth, on_report
        self._context = get_context("spawn")
        self._processes: dict[Connection, _Process[Task]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for process in self._processes.values():
            if process.tasks or kind:  # its answers are not needed any more
                process.process.terminate()
            with suppress(OSError):
                process.connection.send(None)
            process.connection.close()
        end = time.monotonic() + (STOP_S if kind else END_S)
        for process in self._processes.values():
            process.process.join(max(0.0, end - time.monotonic()))
            process.process.kill()
            process.process.join()
        if self.models is not None:
            self.models.close()

    def run(self, take: Callable[[], Task | None]) -> Iterator[tuple[Task, Answer | None]]:
        """Keep the processes busy until all tasks are done; yield each task with its answer.

        If a process is killed, its tasks are yielded with None as the answer, and another process is started.

        Args:
            take: returns the next task; None if there is none at present.

        Raises:
            ScoringError: a process cannot be started, or that with the models ends again and again.
        """
        while True:
            self._feed(take)
            if not any(process.tasks for process in self._processes.values()):
                return
            for connection in wait([*self._processes, *([self.models.news] if self.models else [])]):
                assert isinstance(connection, Connection)
                if self.models is not None and connection is self.models.news:
                    self.models.heed()
                    continue
                process = self._processes[connection]
                try:
                    is_report, content = connection.recv()
                except (EOFError, OSError):
                    del self._processes[connection]
                    connection.close()
                    process.process.join()
                    yield from ((task, None) for task in process.tasks)
                    continue
                if is_report:
                    self._on_report(*content)
                else:
                    if self.models is not None:
                        self.models.note_work()
                    yield process.tasks.popleft(), content

    def _feed(self, take: Callable[[], Task | None]) -> None:
        """Give tasks to the processes with the fewest tasks; if all are busy, start another, up to the
        largest number."""
        while True:
            least = min(self._processes.values(), key=lambda process: len(process.tasks), default=None)
            may_start = len(self._processes) < self.count
            if not may_start and least is not None and len(least.tasks) >= self._depth:
                return
            if (task := take()) is None:
                return
            if least is None or (least.tasks and may_start):
                least = self._start()
            least.tasks.append(task)
            with suppress(OSError):  # it was killed; `run` notices this next
                least.connection.send(task)

    def _start(self) -> _Process[Task]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_run_tasks, args=(theirs, self._worker), daemon=True)
        ensure_running()  # multiprocessing's tracker, whose start would end the shield
        started = _Process[Task](process, ours)
        try:
            with hold_stops(), shield_children(), theirs:  # other threads may receive signals for this one
                process.start()
                self._processes[ours] = started
        except OSError as error:
            reason = error.strerror or error
            raise ScoringError(f"cannot start {self.count} scoring processes: {reason}") from None
        return started


def _run_tasks(connection: Connection, worker: Worker[Any, Any]) -> None:
    """Run the tasks that arrive in this process, until None arrives."""
    obey_only_sigterm()  # by which the parent ends its processes
    sys.setswitchinterval(SWITCH_S)
    tasks: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_receive_tasks, args=(connection, tasks), daemon=True).start()

    def report(*content: Any) -> None:
        connection.send((True, content))

    with suppress(BrokenPipeError, ConnectionResetError):
        while (task := tasks.get()) is not None:
            connection.send((False, worker.run(task, report)))


def _receive_tasks(connection: Connection, tasks: SimpleQueue[Any]) -> None:
    """Receive tasks in a thread while a task runs, so that the parent never has to wait before it can send
    one.

    If the parent is killed, end this process too. Otherwise it would keep its models in memory forever.
    """
    try:
        while (task := connection.recv()) is not None:
            tasks.put(task)
    except (EOFError, OSError):
        os._exit(1)
    tasks.put(None)


MAX_BATCH_WORDS = 16_384
"""Largest number of words per batch: enough for large matrix products, but few enough to keep all processes
busy until close to the end of a file."""
BATCHES_PER_PROCESS = 2
"""Number of batches that each process has at a time: one is rescored while the other waits."""
MAX_LOSSES = 3
"""Number of times that a batch is given to a process that ends unexpectedly, before the job fails."""


class ProcessPoolRescorer(ProcessPool["_Task", BatchResults | Exception]):
    """Rescores batches of lists in several processes; a context manager that ends them.

    The processes start with the first batches; each loads its models when it receives its first batch. If a
    process is killed, another rescores its batches.

    Args:
        load: loads the models; called once in each process.
        count: number of processes.
        threads: CPU threads per process; 0: divide the cores among the processes.
        batch_words: approximate number of words per batch, at most ``MAX_BATCH_WORDS`` if each process has
            models.
        models: the process that holds the models, if ``load`` only makes rescorers that ask it.
    """

    def __init__(
        self,
        load: Callable[[], LocalRescorer],
        count: int,
        threads: int = 0,
        batch_words: int = MAX_BATCH_WORDS,
        models: ModelProcess | None = None,
    ) -> None:
        worker = _BatchWorker(load, threads or max(1, count_cpus() // count))
        super().__init__(worker, count, depth=BATCHES_PER_PROCESS, models=models)
        self.batch_words = batch_words if models else min(batch_words, MAX_BATCH_WORDS)

    def rescore_batches(
        self, batches: Iterable[Batch | LineBlock]
    ) -> Iterator[tuple[Batch | LineBlock, BatchResults]]:
        """Yield each batch with its results, in input order. At most ``BATCHES_PER_PROCESS`` batches for each
        process, and one more, are in memory.

        Raises:
            ScoringError: a process could not be started, or ended unexpectedly too often.
            RescorerError: any error raised in a process, such as BundleError.
        """
        numbered = enumerate(batches)
        waiting: dict[int, Batch | LineBlock] = {}  # results of these, or of an earlier one, are missing
        done: dict[int, BatchResults | Exception] = {}
        lost, losses = deque[_Task](), Counter[int]()

        def take() -> _Task | None:
            if lost:
                return lost.popleft()
            if len(waiting) > BATCHES_PER_PROCESS * self.count:
                return None
            for number, batch in numbered:
                waiting[number] = batch
                return _Task(number, batch if isinstance(batch, LineBlock) else pack_batch(batch))
            return None

        for task, answer in self.run(take):
            if answer is None:
                lost.append(task)
                losses[task.number] += 1
                if losses[task.number] == MAX_LOSSES:
                    raise self._explain_losses()
                continue
            done[task.number] = answer
            while (number := next(iter(waiting), -1)) in done:
                results = done.pop(number)
                if isinstance(results, Exception):
                    raise results
                yield waiting.pop(number), results

    def _explain_losses(self) -> ScoringError:
        advice = "" if self.models else "; each process loads its own copy of the models, so try fewer"
        return ScoringError(
            f"one of {self.count} scoring processes ended unexpectedly, {MAX_LOSSES} times with the same "
            f"lists, perhaps because memory ran out{advice}"
        )


@dataclass(slots=True)
class _BatchWorker:
    """Rescores batches in a process. If a batch fails, the answer is the error, which the parent raises."""

    load: Callable[[], LocalRescorer]
    threads: int
    rescorer: LocalRescorer | None = None

    def run(self, task: _Task, report: Callable[..., None]) -> BatchResults | Exception:
        try:
            if self.rescorer is None:
                self.rescorer = load_in_process(self.load, self.threads)
            if isinstance(task.batch, LineBlock):
                return self.rescorer.rescore_lines(task.batch)
            return self.rescorer.rescore([unpack(packed) for packed in task.batch])
        except RescorerError as error:
            return error
        except Exception as error:
            error.add_note(traceback.format_exc())
            return error


def load_in_process(load: Callable[[], LocalRescorer], threads: int) -> LocalRescorer:
    """Load the models, and prepare this process for doing nothing but rescore."""
    keep_freed_memory()
    collect_rarely()
    use_threads(threads)
    rescorer = load()
    gc.freeze()  # see spare_existing_objects
    return rescorer


@contextmanager
def open_rescorer(
    load: Callable[[], LocalRescorer], count: int, threads: int, batch_words: int
) -> Iterator[BatchRescorer]:
    """Provide a rescorer that runs in this process if ``count`` is 1, otherwise in ``count`` other processes.

    Args:
        load: loads the models; called once in each process.
        threads: CPU threads per process; 0: divide the cores among the processes.
        batch_words: approximate number of words per batch in other processes.
    """
    if count == 1:
        try:
            yield load_in_process(load, threads)
        finally:
            gc.unfreeze()
    else:
        with ProcessPoolRescorer(load, count, threads, batch_words) as rescorer:
            yield rescorer


class SharedLoader(Protocol):
    """Loads the two halves of a rescorer in different processes, to which it is pickled."""

    def load_scorer(self) -> TrieScorer:
        """Load the models."""

    def load_ranker(self, address: str) -> LocalRescorer:
        """Load all but the models, which the ``ModelProcess`` with this address holds."""


@contextmanager
def open_shared_rescorer(
    load: SharedLoader, count: int, threads: int, batch_words: int
) -> Iterator[ProcessPoolRescorer]:
    """Provide a rescorer that runs in ``count`` processes, for which one more process holds the models.

    Args:
        threads: CPU threads of the process that holds the models; 0: one per core.
        batch_words: approximate number of words per batch.
    """
    models = ModelProcess(load.load_scorer, threads or count_cpus())
    load_ranker = partial(load.load_ranker, models.address)
    with ProcessPoolRescorer(load_ranker, count, 1, batch_words, models) as rescorer:
        yield rescorer


@contextmanager
def spare_existing_objects() -> Iterator[None]:
    """Exclude the objects that exist now, such as torch and the models, from garbage collection in the block.

    The lists that come and go cause a full collection every few batches. Those objects would make it 0.1 s
    longer.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class PackedList(NamedTuple):
    """A list whose hypotheses are stored as columns, which are ten times as fast to pickle as objects."""

    id: str
    texts: Sequence[str]
    fields: list[Mapping[str, Any]]
    """Fields of each hypothesis; empty if no hypothesis has any."""
    partial: list[bool]
    """Whether each hypothesis is partial; empty if none is."""
    list_attributes: tuple[Any, ...]
    """The attributes of the list other than its hypotheses, in the order of the class."""


class _Task(NamedTuple):
    number: int
    """Position of the batch in the input."""
    batch: list[PackedList] | LineBlock


def pack_batch(batch: Batch) -> list[PackedList]:
    """Convert the lists of a batch to columns; its errors stay behind."""
    return [pack(nbest) for nbest in select_lists(batch)]


def pack(nbest: NBestList) -> PackedList:
    """Convert a list to columns, to send it to another process."""
    hypotheses = () if nbest.is_plain else nbest.hypotheses
    client_fields = [hypothesis.fields for hypothesis in hypotheses]
    partial = [hypothesis.partial for hypothesis in hypotheses]
    return PackedList(
        nbest.id,
        nbest.texts,
        client_fields if any(client_fields) else [],
        partial if any(partial) else [],
        tuple(getattr(nbest, item.name) for item in fields(NBestList)[2:]),
    )


def unpack(packed: PackedList) -> NBestList:
    """Restore a list from its packed form."""
    n = len(packed.texts)
    if not packed.fields and not packed.partial:
        return NBestList(packed.id, PlainHypotheses(packed.texts), *packed.list_attributes)
    columns = packed.texts, packed.fields or [{}] * n, packed.partial or [False] * n
    return NBestList(packed.id, tuple(map(Hypothesis, *columns)), *packed.list_attributes)

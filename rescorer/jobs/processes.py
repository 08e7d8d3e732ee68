"""Run tasks in several processes of this machine, each with its own copy of the models.

``ProcessPool`` starts, feeds, watches and replaces the processes. Its two users are ``ProcessPoolRescorer``,
whose tasks are batches of lists, and ``rescorer.jobs.shards.run_shards``, whose tasks are whole shards.

On CPUs, several processes with one thread each are faster than one process with several threads, whose small
matrix products wait for one another and for Python's interpreter lock. On a GPU, the host work of one process
overlaps with the kernels of another. Processes are spawned, because torch's threads do not survive a fork.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from rescorer.errors import RescorerError, ScoringError
from rescorer.jobs.files import Batch, BatchRescorer, BatchResults, LocalRescorer, select_lists
from rescorer.runtime import count_cpus, keep_freed_memory, use_threads
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
    """

    def __init__(
        self,
        worker: Worker[Task, Answer],
        count: int,
        *,
        depth: int = 1,
        on_report: Callable[..., object] = lambda *report: None,
    ) -> None:
        self.count = count
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

    def run(self, take: Callable[[], Task | None]) -> Iterator[tuple[Task, Answer | None]]:
        """Keep the processes busy until all tasks are done; yield each task with its answer.

        If a process is killed, its tasks are yielded with None as the answer, and another process is started.

        Args:
            take: returns the next task; None if there is none at present.

        Raises:
            ScoringError: a process cannot be started.
        """
        while True:
            self._feed(take)
            if not any(process.tasks for process in self._processes.values()):
                return
            for connection in wait(list(self._processes)):
                assert isinstance(connection, Connection)
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


class ProcessPoolRescorer(ProcessPool["_PackedBatch", BatchResults | Exception]):
    """Rescores batches of lists in several processes; a context manager that ends them.

    The processes start with the first batches; each loads its models when it receives its first batch.

    Args:
        load: loads the models; called once in each process.
        count: number of processes.
        threads: CPU threads per process; 0: divide the cores among the processes.
        batch_words: approximate number of words per batch, at most ``MAX_BATCH_WORDS``.
    """

    def __init__(
        self,
        load: Callable[[], LocalRescorer],
        count: int,
        threads: int = 0,
        batch_words: int = MAX_BATCH_WORDS,
    ) -> None:
        worker = _BatchWorker(load, threads or max(1, count_cpus() // count))
        super().__init__(worker, count, depth=BATCHES_PER_PROCESS)
        self.batch_words = min(batch_words, MAX_BATCH_WORDS)

    def rescore_batches(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, BatchResults]]:
        """Yield each batch with its results, in input order.

        Raises:
            ScoringError: a process could not be started, or ended unexpectedly.
            RescorerError: any error raised in a process, such as BundleError.
        """
        numbered = enumerate(batches)
        waiting: dict[int, Batch] = {}  # batches whose results, or those of an earlier batch, are missing
        done: dict[int, BatchResults | Exception] = {}

        def take() -> _PackedBatch | None:
            if len(waiting) > BATCHES_PER_PROCESS * self.count:
                return None
            for number, batch in numbered:
                waiting[number] = batch
                return _PackedBatch(number, [pack(nbest) for nbest in select_lists(batch)])
            return None

        for task, answer in self.run(take):
            if answer is None:
                raise ScoringError(
                    f"one of {self.count} scoring processes ended unexpectedly, perhaps because memory ran "
                    "out; each process loads its own copy of the models, so try fewer"
                )
            done[task.number] = answer
            while (number := next(iter(waiting), -1)) in done:
                results = done.pop(number)
                if isinstance(results, Exception):
                    raise results
                yield waiting.pop(number), results


@dataclass(slots=True)
class _BatchWorker:
    """Rescores batches in a process. If a batch fails, the answer is the error, which the parent raises."""

    load: Callable[[], LocalRescorer]
    threads: int
    rescorer: LocalRescorer | None = None

    def run(self, task: _PackedBatch, report: Callable[..., None]) -> BatchResults | Exception:
        try:
            if self.rescorer is None:
                self.rescorer = load_in_process(self.load, self.threads)
            return self.rescorer.rescore([unpack(packed) for packed in task.lists])
        except RescorerError as error:
            return error
        except Exception as error:
            error.add_note(traceback.format_exc())
            return error


def load_in_process(load: Callable[[], LocalRescorer], threads: int) -> LocalRescorer:
    """Load the models, and prepare this process for doing nothing but rescore."""
    keep_freed_memory()
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


class _PackedBatch(NamedTuple):
    number: int
    """Position of the batch in the input."""
    lists: list[PackedList]


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

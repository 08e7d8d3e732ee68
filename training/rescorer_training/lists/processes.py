"""Run tasks in processes that may crash or hang: such a task fails, and the others go on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why a task has no result."""

    reason: str


class _Worker(Generic[Task, Result]):
    """A process that works on one task at a time."""

    def __init__(self, make: Callable[[], Callable[[Task], Result]], timeout_s: float) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads hold
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._timeout_s = timeout_s

    def give(self, task: Task) -> None:
        self.task = task
        self.deadline = time.monotonic() + self._timeout_s
        self.connection.send(task)

    def take(self) -> Result | TaskError | None:
        """The result of the task; None while it is being computed. After a crash or a timeout, stop."""
        try:
            if self.connection.poll():
                result: Result = self.connection.recv()
                return result
        except (EOFError, OSError):
            self.stop()
            return TaskError("the process crashed")
        if time.monotonic() < self.deadline:
            return None
        self.stop()
        return TaskError(f"took longer than {self._timeout_s:g} s")

    @property
    def is_stopped(self) -> bool:
        return self.connection.closed

    def stop(self) -> None:
        """Kill the process, if it is still running, and the programs that it runs."""
        if self._process.pid is not None and self._process.is_alive():
            with suppress(ProcessLookupError):  # it has no group of its own yet, so it runs no program
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(make: Callable[[], Callable[[Task], Result]], connection: Connection) -> None:
    os.setsid()  # a group of its own, to be killed with its programs; Ctrl-C reaches the parent only
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    function = make()
    while True:
        try:
            task = connection.recv()
        except EOFError:  # the parent has gone
            return
        connection.send(function(task))


def _exit_with_parent() -> None:
    """End this process and its programs when its parent ends, also if the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os.killpg(os.getpid(), signal.SIGKILL)


def run_tasks(
    make: Callable[[], Callable[[Task], Result]],
    tasks: Iterable[Task],
    n_processes: int,
    timeout_s: float,
) -> Iterator[tuple[Task, Result | TaskError]]:
    """Yield each task with its result, in the order of completion.

    Args:
        make: called in each new process; returns the function that computes results. Must be picklable.
        timeout_s: time for one task after which its process is killed; for the first task of a process it
            includes ``make``.
    """
    remaining = iter(tasks)
    workers: list[_Worker[Task, Result]] = []

    def start(task: Task) -> None:
        workers.append(_Worker(make, timeout_s))
        workers[-1].give(task)

    try:
        for task in islice(remaining, n_processes):
            start(task)
        while workers:
            next_deadline = min(worker.deadline for worker in workers)
            wait([worker.connection for worker in workers], max(0.0, next_deadline - time.monotonic()))
            for worker in list(workers):
                result = worker.take()
                if result is None:
                    continue
                yield worker.task, result
                following = list(islice(remaining, 1))
                if not following:
                    worker.stop()
                if worker.is_stopped:
                    workers.remove(worker)
                for task in following:
                    start(task) if worker.is_stopped else worker.give(task)
    finally:
        for worker in workers:
            worker.stop()

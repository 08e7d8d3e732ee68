"""What signals do to a server, and how a stopping process ends in time, whatever its threads and peers do."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EXIT_S = 4.0
"""Time that a stopping server may take beyond the grace time. The service managers in deploy/ allow 5 s."""


def end_process_within(seconds: float) -> None:
    """End this process with exit code 0 if it still runs after this time, even if its threads are busy.

    Python itself waits at its exit for the threads of executors, one of which may score or convert a long
    list.
    """
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()


@contextmanager
def answer_signals(
    stop_requested: asyncio.Event, reload: Callable[[], object], grace_s: float
) -> Iterator[None]:
    """Let SIGTERM and SIGINT request a stop and SIGHUP a reload while a block of a coroutine runs.

    Afterwards the former handlers apply again, so that SIGHUP does not kill a server that has nearly ended.

    Args:
        grace_s: time for calls in progress; the process ends at most ``EXIT_S`` later.
    """

    def request_stop() -> None:
        end_process_within(grace_s + EXIT_S)
        stop_requested.set()

    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: request_stop, signal.SIGINT: request_stop, signal.SIGHUP: reload}
    former = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
            signal.signal(number, former[number])

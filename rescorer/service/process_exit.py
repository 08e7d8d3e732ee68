"""End a stopping process in time, whatever its threads and its peers do."""

from __future__ import annotations

import os
import threading

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

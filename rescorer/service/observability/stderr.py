"""Keep stderr from blocking a process or failing a call if the disk behind it is full or its reader stalls.

``protect_stderr`` puts a pipe in front of the stderr of the server's first process. Everything that this
process and its children write to file descriptor 2 (log lines, tracebacks, warnings, what gRPC's C core
prints) goes into the pipe, which never blocks its writers; a thread of the first process empties it into the
former stderr. What does not fit into the pipe, or cannot be written, is dropped and counted, and a log line
says how much once writing works again.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import io
import os
import select
import sys
import termios
import threading
import time
from contextlib import suppress

import structlog

STDERR = 2
PIPE_BYTES = 1 << 20
"""Size of the pipe: seconds of log at full load. Linux allows no more without privileges."""
CHUNK_BYTES = 1 << 16
PAUSE_S = 0.05
"""Pause of the pump after it has emptied the pipe, so that under load it is woken for many lines at once
instead of each one."""
FLUSH_S = 1.0
"""Longest time that an ending process waits for its last lines to be written."""
REPORT_INTERVAL_S = 1.0
"""Shortest time between two log lines about dropped lines."""

log = structlog.get_logger()


class DroppedLines:
    """Counts the lines that this process could not write, and reports them in the log."""

    def __init__(self) -> None:
        self.total = 0
        self._reported = 0
        self._next_report_at = 0.0
        self._lock = threading.Lock()

    def add(self, lines: int) -> None:
        with self._lock:
            self.total += lines

    def report(self) -> None:
        """Log the number of lines dropped since the last report, if any; call it when writing works."""
        with self._lock:
            total, now = self.total, time.monotonic()
            if total == self._reported or now < self._next_report_at:
                return
            self._next_report_at = now + REPORT_INTERVAL_S
        log.warning("log lines were dropped", lines=total - self._reported)
        if self.total == total:  # otherwise the line may have been dropped itself: the next one repeats it
            self._reported = total


dropped_lines = DroppedLines()
"""The lines that this process has dropped."""


class NonBlockingStderr(io.TextIOBase):
    """Text stream on the pipe in front of stderr. Writing neither blocks nor raises; what does not fit is
    dropped.

    Args:
        is_terminal: whether the pipe leads to a terminal.
        reports: report dropped lines when writing works again.
    """

    def __init__(self, *, is_terminal: bool, reports: bool) -> None:
        self._is_terminal, self._reports = is_terminal, reports
        self._is_inside_line = False

    encoding = "utf-8"
    errors = "backslashreplace"

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
        return STDERR

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        data = text.encode(self.encoding, self.errors)
        line_end = b"\n" if self._is_inside_line else b""  # the last write was cut
        data = line_end + data
        try:
            written = os.write(STDERR, data)
        except OSError:
            written = 0
        if written == len(data):
            self._is_inside_line = False
            if self._reports:
                dropped_lines.report()
        else:
            self._is_inside_line |= written > 0
            dropped_lines.add(data.count(b"\n", max(written, len(line_end))))
        return len(text)


class Pump:
    """Thread that writes what comes out of a pipe to a stream that may block or fail.

    Args:
        inlet: descriptor of the pipe's reading end.
        outlet: descriptor of the stream.
    """

    def __init__(self, inlet: int, outlet: int) -> None:
        self._inlet, self._outlet = inlet, outlet
        self._writing = threading.Lock()
        self._is_inside_line = self._skips_line_end = self._has_failed = False
        threading.Thread(target=self._run, name="stderr", daemon=True).start()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything in the pipe is written; return whether that was possible in time."""
        deadline = time.monotonic() + timeout_s
        while (remaining_s := deadline - time.monotonic()) > 0:
            if self._writing.acquire(timeout=remaining_s):
                is_empty = not count_readable_bytes(self._inlet)
                self._writing.release()
                if is_empty:
                    return True
                time.sleep(0.001)  # let the thread take the lock
        return False

    def _run(self) -> None:
        while True:
            select.select((self._inlet,), (), ())
            with self._writing, suppress(Exception):  # such as MemoryError: later lines are written again
                self._write(os.read(self._inlet, CHUNK_BYTES))
            if not count_readable_bytes(self._inlet):
                time.sleep(PAUSE_S)

    def _write(self, chunk: bytes) -> None:
        """Write a chunk. After a failure, continue with the next whole line, on a line of its own."""
        if self._skips_line_end:
            _, newline, chunk = chunk.partition(b"\n")
            dropped_lines.add(len(newline))
            self._skips_line_end = not newline
        line_end = b"\n" if self._has_failed and self._is_inside_line and chunk else b""
        chunk, written = line_end + chunk, 0
        try:
            while written < len(chunk):
                with suppress(BlockingIOError):  # somebody else made the stream non-blocking
                    written += os.write(self._outlet, memoryview(chunk)[written:])
                    continue
                select.select((), (self._outlet,), ())
        except OSError:
            dropped_lines.add(chunk.count(b"\n", max(written, len(line_end))))
            self._skips_line_end = not chunk.endswith(b"\n")
            self._has_failed = True
        if written:
            self._is_inside_line = chunk[written - 1 : written] != b"\n"
        if written == len(chunk) > 0:
            self._has_failed = False
            dropped_lines.report()


def count_readable_bytes(descriptor: int) -> int:
    """Number of bytes that wait in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


def protect_stderr() -> None:
    """Put a pipe that never blocks in front of this process's stderr, and of that of its future children."""
    if isinstance(sys.stderr, NonBlockingStderr):
        return
    if sys.stderr is None:  # the process was started with a closed stderr
        outlet, is_terminal = os.open(os.devnull, os.O_WRONLY), False
    else:
        outlet, is_terminal = os.dup(STDERR), sys.stderr.isatty()
    inlet, pipe = os.pipe()
    os.set_blocking(pipe, False)
    with suppress(AttributeError, OSError):  # not Linux, or no permission: keep the default of 64 KiB
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.dup2(pipe, STDERR)
    os.close(pipe)
    pump = Pump(inlet, outlet)
    sys.stderr = NonBlockingStderr(is_terminal=is_terminal, reports=False)
    atexit.register(release_stderr, pump, outlet)


def release_stderr(pump: Pump, outlet: int) -> None:
    """Wait a moment until the last lines are written; later ones go directly to the former stderr."""
    if pump.flush(FLUSH_S):
        os.dup2(outlet, STDERR)


def use_parents_stderr(*, is_terminal: bool = False) -> None:
    """Make Python write to the pipe that a parent process has put in front of stderr.

    Args:
        is_terminal: whether the parent's stderr is a terminal.
    """
    sys.stderr = NonBlockingStderr(is_terminal=is_terminal, reports=True)

"""Log events of a server, written to a stderr that cannot block it.

Our own events and those of other packages go to stderr, as JSON objects (one per line) or as readable text.
Their values, which may quote requests, are cut, and what could forge lines or control a terminal is escaped.

If the disk behind stderr is full or its reader stalls, no process may wait for it and no call may fail. So
``protect_stderr`` puts a pipe in front of the stderr of the server's first process. Everything that this
process and its children write to file descriptor 2 (log lines, tracebacks, warnings, what gRPC's C core
prints) goes into the pipe, and a thread of the first process, the pump, empties the pipe into the former
stderr. Lines that do not fit into the pipe, or cannot be written, are dropped and counted. Once writing works
again, a log line says how many were dropped.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import io
import logging
import os
import select
import sys
import termios
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import structlog

from rescorer.errors import shorten
from rescorer.escapes import escape_controls

log = structlog.get_logger()

STDERR = 2
PIPE_BYTES = 1 << 20
"""Size of the pipe, which holds seconds of log at full load. Linux allows no more without privileges."""
CHUNK_BYTES = 1 << 16
PAUSE_S = 0.05
"""Pause of the pump after it has emptied the pipe. Under load, many lines then arrive before it wakes up."""
FLUSH_S = 1.0
"""Longest time that an ending process waits for its last lines to be written."""
REPORT_INTERVAL_S = 1.0
"""Shortest time between two log lines about dropped lines."""


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
        if self.total == total:  # otherwise this line may have been dropped too: report its number again
            self._reported = total


dropped_lines = DroppedLines()
"""The lines that this process has dropped."""


class NonBlockingStderr(io.TextIOBase):
    """Text stream on the pipe in front of stderr.

    Writing neither blocks nor raises; text that does not fit is dropped.

    Args:
        is_terminal: whether the pipe leads to a terminal.
        reports: whether to report dropped lines when writing works again.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, *, is_terminal: bool, reports: bool) -> None:
        self._is_terminal, self._reports = is_terminal, reports
        self._is_inside_line = False

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
    """Thread that copies a pipe to a stream that may block or fail.

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
        """Write a chunk. After a failure, continue with the next whole line, on a new line."""
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
    """Put a pipe that never blocks in front of the stderr of this process and of its future children."""
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

    @atexit.register
    def release_stderr() -> None:
        """Wait a moment until the last lines are written; later ones go directly to the former stderr."""
        if pump.flush(FLUSH_S):
            os.dup2(outlet, STDERR)


def use_parents_stderr(*, is_terminal: bool = False) -> None:
    """Make Python write to the pipe that a parent process has put in front of stderr.

    Args:
        is_terminal: whether the parent's stderr is a terminal.
    """
    sys.stderr = NonBlockingStderr(is_terminal=is_terminal, reports=True)


TEXTS_EVENT = "texts"
"""Event whose values are the texts of a request; the setting ``log_texts`` asks for it."""
MAX_VALUE_CHARS = 500
"""Longest text in a log line."""
MAX_CONTAINER_CHARS = 4_000
"""Longest list or mapping in a log line, in characters of its texts."""
MAX_TRACEBACK_CHARS = 16_000
MAX_TEXTS_CHARS = 250_000
"""Longest texts of a request in a log line, in characters. A line must fit into the pipe before stderr."""
ITEM_CHARS = 8
"""Length that a number or another short item counts as, in characters."""
SCALARS = (int, float, type(None))
"""Types whose values are short and have nothing to escape."""
TRACEBACKS = ("exception", "stack")
"""Keys of tracebacks in an event."""

ESCAPED_LATER = "".join(map(chr, range(32)))
"""Control characters that the renderers of lines escape themselves."""

Event = dict[str, Any]


def bound_values(logger: Any, method: str, event: Event) -> Event:
    """Structlog processor that cuts the values of an event that are too long."""
    if event.get("event") == TEXTS_EVENT:
        limits = MAX_TEXTS_CHARS, MAX_TEXTS_CHARS
    else:
        limits = MAX_VALUE_CHARS, MAX_CONTAINER_CHARS
    return {key: _bound(key, value, *limits) for key, value in event.items()}


def escape_lines(logger: Any, method: str, event: Event) -> Event:
    """Structlog processor for readable lines, so that no text can look like another line.

    The event stays on one line, and the lines of a traceback are indented. The renderer quotes other values.
    """
    escaped = {**event, "event": escape_controls(str(event.get("event", "")))}
    for key in TRACEBACKS:
        if key in event:
            lines = str(event[key]).split("\n")
            escaped[key] = "\n".join(f"    {escape_controls(line)}" for line in lines)
    return escaped


def _bound(key: str, value: Any, max_chars: int, max_sum: int) -> Any:
    if key in TRACEBACKS:  # cut in the middle: the end says what failed, the beginning says where
        text = str(value)
        if len(text) > MAX_TRACEBACK_CHARS:
            half = MAX_TRACEBACK_CHARS // 2
            text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
        return escape_controls(text, ESCAPED_LATER)
    return _Copier(max_chars, max_sum).copy(value)


class _Copier:
    """Copies a value whose texts are cut to ``max_chars``, until their lengths add up to ``max_sum``."""

    def __init__(self, max_chars: int, max_sum: int) -> None:
        self._max_chars, self._remaining = max_chars, max_sum

    def copy(self, value: Any) -> Any:
        if isinstance(value, str):
            text = shorten(value, max(1, min(self._max_chars, self._remaining)))
            self._remaining -= len(text) + ITEM_CHARS
            return escape_controls(text, ESCAPED_LATER)
        if isinstance(value, SCALARS):
            self._remaining -= ITEM_CHARS
            return value
        if isinstance(value, Mapping):
            pairs: Event = {}
            for key, part in value.items():
                if self._remaining <= 0:
                    return pairs | {"…": f"{len(value) - len(pairs)} more"}
                pairs[self.copy(str(key))] = self.copy(part)
            return pairs
        if isinstance(value, (list, tuple, set, frozenset)):
            items: list[Any] = []
            for item in value:
                if self._remaining <= 0:
                    return [*items, f"… {len(value) - len(items)} more"]
                items.append(self.copy(item))
            return items
        return self.copy(repr(value))


LogFormat = Literal["auto", "json", "console"]

TONED_DOWN = {
    "Invalid encoding on": "metadata of a call is not UTF-8",
    "ExecuteBatchError raised in core": "a call is gone before its answer",
}
"""Messages that replace errors of gRPC, by the beginnings of these errors."""


def log_to_stderr(form: LogFormat = "auto", **always: Any) -> None:
    """Configure the log of the whole process.

    Args:
        form: ``auto`` means ``console`` if stderr is a terminal, else ``json``.
        always: fields to add to every line.
    """
    for_people = form == "console" or (form == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        lambda logger, method, event: {**event, **always},
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, *rendering_steps(for_people)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # One write per line, including its end: other processes of the server write to stderr as well.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    # grpc and others log through the standard library.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *rendering_steps(for_people),
            ],
        )
    )
    handler.addFilter(tone_down_grpc)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def tone_down_grpc(record: logging.LogRecord) -> bool:
    """Turn two errors that gRPC logs into warnings; return True, so that they are still logged.

    One is a call that was cancelled while it was answered. The other is metadata that is not UTF-8: gRPC
    would log its value, which may be a token.
    """
    for beginning, message in TONED_DOWN.items():
        if str(record.msg).startswith(beginning):
            record.msg, record.levelno, record.levelname = message, logging.WARNING, "WARNING"
            record.args, record.exc_info = (), None
            break
    return True


def rendering_steps(for_people: bool) -> list[Any]:
    """Return the structlog processors that turn an event into a line.

    Texts are cut, and quoted so that clients cannot control the terminal.
    """
    bounded = [structlog.processors.format_exc_info, bound_values]
    if for_people:
        # Plain tracebacks: those of rich show variables, and so the texts of requests.
        return [
            *bounded,
            escape_lines,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                repr_native_str=True,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    return [*bounded, structlog.processors.JSONRenderer(ensure_ascii=False)]

"""Owns the log: one JSON object a line, or lines for people; our own and other packages'."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog

LogFormat = Literal["auto", "json", "console"]

WARNING = logging.WARNING, "WARNING"


def log_to_stderr(form: LogFormat = "auto", **always: Any) -> None:
    """From now on, for the whole process; ``auto`` is for people where stderr is a terminal.

    Args:
        always: what every line says.
    """
    people = form == "console" or (form == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        lambda logger, method, event: {**event, **always},
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, *last_steps(people)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # A line and its end at once: other processes of a server write there, too.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    # What grpc and others say comes by the standard library.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last_steps(people)],
        )
    )
    handler.addFilter(in_our_words)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def in_our_words(record: logging.LogRecord) -> bool:
    """What gRPC makes too much of: metadata that is not UTF-8, told with its value, which may be a token, and
    calls that their callers have left as they were answered."""
    told = str(record.msg)
    if told.startswith("Invalid encoding on"):
        record.msg, record.levelno, record.levelname = "metadata of a call is not UTF-8", *WARNING
    elif told.startswith("ExecuteBatchError raised in core"):
        record.msg, record.levelno, record.levelname = "a call is gone before its answer", *WARNING
    else:
        return True
    record.args, record.exc_info = (), None
    return True


def last_steps(people: bool) -> list[Any]:
    """From an event to its line; what came from clients is quoted, so that it cannot draw on a terminal."""
    if people:
        # Plain tracebacks: those of rich show values of variables, and so texts.
        return [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                repr_native_str=True,
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]

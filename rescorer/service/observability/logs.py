"""Log our own events and those of other packages to stderr, as JSON objects (one per line) or as readable
text."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog

from rescorer.service.observability.log_values import bound_values, escape_lines

LogFormat = Literal["auto", "json", "console"]

WARNING = logging.WARNING, "WARNING"


def log_to_stderr(form: LogFormat = "auto", **always: Any) -> None:
    """Configure the log of the whole process; ``auto`` means ``console`` if stderr is a terminal, else
    ``json``.

    Args:
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
    """Turn two errors of gRPC's log into warnings: calls that were cancelled while being answered, and
    metadata that is not UTF-8, which gRPC logs with its value, possibly a token."""
    message = str(record.msg)
    if message.startswith("Invalid encoding on"):
        record.msg, record.levelno, record.levelname = "metadata of a call is not UTF-8", *WARNING
    elif message.startswith("ExecuteBatchError raised in core"):
        record.msg, record.levelno, record.levelname = "a call is gone before its answer", *WARNING
    else:
        return True
    record.args, record.exc_info = (), None
    return True


def rendering_steps(for_people: bool) -> list[Any]:
    """Return the structlog processors that turn an event into a line; texts are cut, and quoted so that
    clients cannot control the terminal."""
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

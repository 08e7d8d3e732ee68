"""Read the JSON log of a server under test, and add its errors to the error that ends a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from rescorer.errors import DeadlineExceeded, ServiceError

MAX_LINE_CHARACTERS = 500
"""Log lines are cut to this length."""
MAX_QUOTED_LINES = 5


@contextmanager
def explain_errors(log: Path, limit_s: float) -> Iterator[None]:
    """Turn errors of a run into errors that quote the last errors in the server's log.

    Raises:
        DeadlineExceeded: If the run takes longer than ``limit_s``.
        ServiceError: If the run fails in any other way.
    """
    try:
        yield
    except TimeoutError:
        raise DeadlineExceeded(f"the run takes longer than {limit_s:g} s") from None
    except (OSError, grpc.RpcError, ServiceError) as error:
        logged = " | ".join(read_logged_errors(log)[-MAX_QUOTED_LINES:])
        raise ServiceError(f"the run failed: {error!r}; last errors in the server's log: {logged}") from None


def read_logged_errors(log: Path) -> list[str]:
    """Read the lines of a log that report errors of the server, tracebacks included."""
    found = []
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                level = json.loads(line).get("level")
            except (ValueError, AttributeError):  # not written by the server, but for example by gRPC
                level = "error" if line.startswith("Traceback") else ""
            if level in ("error", "critical"):
                found.append(line.strip()[:MAX_LINE_CHARACTERS])
    return found


def read_metrics_port(log: Path) -> int:
    """Find the metrics port of the server that writes this log."""
    with log.open(encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines if '"metrics"' in line]
    return int(next(event["port"] for event in events if event["event"] == "metrics"))

"""Limit how long a worker may take."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

PARTS = 10
"""Number of parts into which a time limit is divided."""


async def run_within(timeout_s: float, work: Coroutine[Any, Any, Result]) -> Result:
    """Await a result like ``asyncio.wait_for``, but hardly count the time in which the event loop is blocked.

    With ``workers = 0`` it may be blocked while a model is loaded, and so is the thread that scores. The time
    is waited for in parts, of which such a pause uses up one, however long it is.

    Raises:
        TimeoutError: If it takes longer than ``timeout_s``.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(PARTS):
            done, _ = await asyncio.wait((task,), timeout=timeout_s / PARTS)
            if done:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()

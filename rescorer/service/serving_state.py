"""Derive the status of health checks from the state of the server, and keep it up to date."""

from __future__ import annotations

import asyncio

import structlog
from prometheus_client import Gauge

from rescorer.service.api.health import NOT_SERVING, SERVING, Health
from rescorer.service.models.repository import ModelRepository
from rescorer.service.workers.pool import WorkerPool

UPDATE_INTERVAL_S = 0.5

log = structlog.get_logger()


def explain_not_serving(
    *, is_started: bool, is_stopping: bool, n_models: int, n_workers_alive: int, failure: str = ""
) -> str:
    """Explain why a server cannot answer requests; empty: it can.

    Args:
        is_started: whether the first models have been loaded.
        n_models: number of models in service, including those that are missing on disk.
        n_workers_alive: number of workers that can score.
        failure: why scoring is no longer possible; empty: it is.
    """
    if failure:
        return failure
    if is_stopping:
        return "the server is stopping"
    if not is_started:
        return "the models are being loaded"
    if not n_models:
        return "there is no model to serve"
    return "" if n_workers_alive else "no worker is able to score"


class ServingState:
    """Report to health checks and in a metric whether the server can answer requests.

    Args:
        ready: set to 1 while health reports SERVING, otherwise to 0.
    """

    def __init__(self, health: Health, ready: Gauge, models: ModelRepository, pool: WorkerPool) -> None:
        self._health, self._ready = health, ready
        self._models, self._pool = models, pool
        self._is_started = self._is_stopping = False
        self._failure = ""
        self._last_reason = ""
        self._updating: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Report the current state from now on, until ``stop``."""
        self._is_started = True
        self.update()
        self._updating = asyncio.create_task(self._keep_updating())

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._is_stopping = True
        if self._updating is not None:
            self._updating.cancel()
        self.update()
        self._health.begin_shutdown()

    def fail(self, reason: str) -> None:
        """Report that scoring is no longer possible."""
        self._failure = reason
        self.update()

    def update(self) -> None:
        reason = explain_not_serving(
            is_started=self._is_started,
            is_stopping=self._is_stopping,
            n_models=self._models.n_serving,
            n_workers_alive=self._pool.n_alive,
            failure=self._failure,
        )
        self._ready.set(not reason)
        self._health.missing_models = tuple(self._models.missing)
        self._health.set(NOT_SERVING if reason else SERVING)
        if self._is_started and reason != self._last_reason:
            write = log.warning if reason and not self._is_stopping else log.info
            write("health has changed", serving=not reason, reason=reason)
        self._last_reason = reason

    async def _keep_updating(self) -> None:
        while True:
            await asyncio.sleep(UPDATE_INTERVAL_S)
            self.update()

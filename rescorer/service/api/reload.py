"""Owns what a running server reads again, told to or by itself: models, clients, which models to serve."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from rescorer.errors import ConfigError, RescorerError
from rescorer.service.api.auth import Access
from rescorer.service.api.shadow import Shadow
from rescorer.service.models.repository import Changes, ModelRepository
from rescorer.service.settings import ServiceSettings

log = structlog.get_logger()


class Reloader:
    """Reads again; what cannot be used is told, and what was there before stays.

    Args:
        settings: those the server started with.
        read_again: reads the settings' sources anew; None: settings stay as they are.
        done: called after a reload that was asked for or has changed something.
        shadow: looks for a new version of its own, too.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        repository: ModelRepository,
        access: Access,
        read_again: Callable[[], ServiceSettings] | None = None,
        done: Callable[[Changes], None] = lambda changes: None,
        shadow: Shadow | None = None,
    ) -> None:
        self._settings = settings
        self._done, self._shadow = done, shadow
        self._repository, self._access = repository, access
        self._read_again = read_again
        self._reloading: set[asyncio.Task[Changes]] = set()
        self.others: Callable[[], Awaitable[None]] | None = None
        """Has the other fronts of the server reload, and waits for them; None: it has no others."""

    async def reload_all(self) -> Changes:
        """As ``reload``, by all fronts; the changes are those of this one."""
        if self.others is None:
            return await self.reload()
        changes, _ = await asyncio.gather(self.reload(), self.others())
        return changes

    async def reload(self, *, again: bool = True) -> Changes:
        """Raises nothing that is the disk's fault; ``again`` as of ``ModelRepository.reload``."""
        refused: dict[str, str] = {}
        for name, read in (("settings", self._reread_settings), ("access", self._access.reload)):
            try:
                await asyncio.to_thread(read)
            except ConfigError as fault:
                refused[name] = str(fault)
        try:
            changes = await self._repository.reload(again=again)
        except RescorerError as fault:  # nothing serves yet
            changes = Changes(refused={"models": self._repository.reason(fault)})
        changes.refused |= refused
        if self._shadow is not None:
            self._shadow.reload(again=again)
        if changes or again:
            self._done(changes)
            log.info("reloaded", **vars(changes))
        return changes

    def request_reload(self) -> None:
        """Reloads by and by; for a signal, which cannot wait."""
        task = asyncio.get_running_loop().create_task(self.reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def poll(self) -> None:
        """Looks for what is new every ``poll_s``, for ever."""
        while True:
            await asyncio.sleep(self._settings.poll_s)
            await self.reload(again=False)

    def _reread_settings(self) -> None:
        if self._read_again is None:
            return
        settings = self._read_again()
        self._repository.models = settings.models
        changed = {name for name, value in settings if value != getattr(self._settings, name)} - {"models"}
        if changed:
            log.warning("settings need a restart", settings=sorted(changed))

"""Reload models, clients and the list of models to serve while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from rescorer.errors import ConfigError, RescorerError
from rescorer.service.api.auth import Authenticator
from rescorer.service.api.shadow import Shadow
from rescorer.service.models.repository import ModelRepository
from rescorer.service.models.versions import Changes
from rescorer.service.settings import ServiceSettings

log = structlog.get_logger()


class Reloader:
    """Reload files that changed on disk. Unusable files are reported, and their previous state stays in use.

    Args:
        settings: the settings that the server started with.
        read_settings: reads the settings from their sources again; None: they cannot change.
        on_reloaded: called after a reload that was requested or that changed something.
        shadow: the shadow, if any, whose bundle is reloaded too.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        repository: ModelRepository,
        authenticator: Authenticator,
        read_settings: Callable[[], ServiceSettings] | None = None,
        on_reloaded: Callable[[Changes], None] = lambda changes: None,
        shadow: Shadow | None = None,
    ) -> None:
        self._settings = settings
        self._on_reloaded, self._shadow = on_reloaded, shadow
        self._repository, self._authenticator = repository, authenticator
        self._read_settings = read_settings
        self._refused_files: dict[str, str] = {}
        self._reloading: set[asyncio.Task[Changes]] = set()
        self.others: Callable[[], Awaitable[None]] | None = None
        """Reloads the other front ends of the server and waits for them; None: there are no others."""

    async def reload_all(self) -> Changes:
        """Reload all front ends and return the changes of this one."""
        if self.others is None:
            return await self.reload()
        changes, _ = await asyncio.gather(self.reload(), self.others())
        return changes

    async def reload(self, *, retry_refused: bool = True) -> Changes:
        """Reload, and return the changes; files that cannot be used are reported in ``Changes.refused``.

        Args:
            retry_refused: try bundles again that were refused and have not changed since.
        """
        refused = await self._reload_files()
        try:
            changes = await self._repository.reload(again=retry_refused)
        except RescorerError as error:  # no bundle is served yet
            changes = Changes(refused={"models": self._repository.reason(error)})
        changes.refused |= refused
        if self._shadow is not None:
            self._shadow.reload(retry_refused=retry_refused)
        if changes or retry_refused:
            self._on_reloaded(changes)
            log.info("reloaded", **vars(changes))
        return changes

    def request_reload(self) -> None:
        """Reload in the background; for signal handlers, which cannot wait."""
        task = asyncio.get_running_loop().create_task(self.reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def poll(self) -> None:
        """Look for changes every ``poll_s`` seconds, for ever."""
        while True:
            await asyncio.sleep(self._settings.poll_s)
            try:
                await self.reload(retry_refused=False)
            except Exception as error:  # otherwise this would be the last look
                log.error("looking for changes failed", exc_info=error)

    async def _reload_files(self) -> dict[str, str]:
        """Read settings and clients again; return the reasons why they are refused, and log new ones."""
        refused: dict[str, str] = {}
        for name, read in (("settings", self._reload_settings), ("access", self._authenticator.reload)):
            try:
                await asyncio.to_thread(read)
            except ConfigError as error:
                refused[name] = str(error)
            if name in refused and refused[name] != self._refused_files.get(name):
                log.error(
                    "a file is refused, its former content stays in use", file=name, error=refused[name]
                )
        self._refused_files = refused
        return refused

    def _reload_settings(self) -> None:
        if self._read_settings is None:
            return
        settings = self._read_settings()
        self._repository.models = settings.models
        changed = {name for name, value in settings if value != getattr(self._settings, name)} - {"models"}
        if changed:
            log.warning("changed settings need a restart", settings=sorted(changed))

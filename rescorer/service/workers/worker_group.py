"""A worker of several processes: a bundle that is loaded during service gets a process of its own.

Loading keeps a process busy: reading an ARPA file needs Python's global interpreter lock. So a process that
scores never loads, and a bundle that kills the process that loads it harms nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rescorer.errors import Unavailable
from rescorer.service.workers.ipc import WorkerLost
from rescorer.service.workers.worker import Worker, WorkerScores, loader_died_error
from rescorer.trie import HypothesisTrie


class WorkerGroup:
    """One worker for its users, who lend it as a whole; each bundle is in one of its processes.

    Args:
        create: creates a process, which is not started yet.
    """

    def __init__(self, create: Callable[[], Worker]) -> None:
        self._create = create
        self._members: list[Worker] = []
        self._loading: list[Worker] = []  # not members until they have loaded their bundle
        self._last_used: Worker | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(pid for member in (*self._members, *self._loading) for pid in member.pids)

    @property
    def device_bytes(self) -> Mapping[str, int]:
        reports = [member.device_bytes for member in self._members]
        return {kind: max(report.get(kind, 0) for report in reports) for report in reports for kind in report}

    @property
    def labels(self) -> set[str]:
        return set().union(*(member.labels for member in self._members))

    @property
    def alive(self) -> bool:
        return bool(self._members) and all(member.alive for member in self._members)

    @property
    def is_stopped(self) -> bool:
        return any(member.is_stopped for member in self._members)

    async def start(self) -> None:
        """Replace the processes that have died; the others keep their bundles."""
        dead = [member for member in self._members if not member.alive]
        self._members = [member for member in self._members if member.alive]
        await asyncio.gather(*(member.stop() for member in dead))
        if not self._members:
            member = self._create()
            self._members.append(member)
            await member.start()

    async def load(self, label: str, folder: Path) -> None:
        if not self._members:
            raise WorkerLost("a worker has died")
        await self._members[-1].load(label, folder)

    async def load_beside(self, label: str, folder: Path) -> None:
        """Load a bundle in a new process, while the others serve.

        Raises:
            BundleError: If the bundle cannot be used, or the process dies.
        """
        member = self._create()
        self._loading.append(member)
        try:
            await member.start()
            await member.load(label, folder)
        except WorkerLost:
            await member.stop()
            raise loader_died_error(folder) from None
        except BaseException:
            await member.stop()
            raise
        finally:
            self._loading.remove(member)
        self._members.append(member)
        await self._stop_if_unused(self._members[0])

    async def unload(self, label: str) -> None:
        for member in self._members_with(label):
            await member.unload(label)
            await self._stop_if_unused(member)

    async def probe(self) -> None:
        for member in list(self._members):
            self._last_used = member
            await member.probe()

    async def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str], encode: Sequence[str] = ()
    ) -> WorkerScores:
        members = self._members_with(label)
        if not members:
            raise Unavailable(f"{label} is not loaded")
        self._last_used = members[0]
        return await members[0].score(label, trie, only, encode)

    async def stop(self) -> None:
        members = (*self._members, *self._loading)
        self._members = []
        await asyncio.gather(*(member.stop() for member in members))

    async def terminate(self) -> None:
        """Stop the processes that are stopped by a signal, otherwise the one that was used last."""
        stopped = [member for member in self._members if member.is_stopped]
        for member in stopped or [self._last_used or self._members[0]]:
            await member.terminate()

    def _members_with(self, label: str) -> list[Worker]:
        return [member for member in self._members if label in member.labels]

    async def _stop_if_unused(self, member: Worker) -> None:
        """Stop a process without bundles, unless it is the only one."""
        if not member.labels and len(self._members) > 1 and member in self._members:
            self._members.remove(member)
            await member.stop()

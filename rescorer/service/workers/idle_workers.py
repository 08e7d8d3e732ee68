"""A fair queue of idle workers."""

from __future__ import annotations

import asyncio
from collections import deque

from rescorer.service.workers.worker import Worker


class IdleWorkers:
    """Fair queue of idle workers; contains None when there will be no more workers.

    ``asyncio.Queue`` is not fair: a caller that arrives while a waiting one wakes up takes the item that the
    other was woken for. With that queue, batches waited for minutes under a steady load.
    """

    def __init__(self) -> None:
        self._free: deque[Worker | None] = deque()  # empty while any caller waits
        self._waiting: deque[asyncio.Future[Worker | None]] = deque()

    def __len__(self) -> int:
        return len(self._free)

    def put(self, worker: Worker | None) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._free.append(worker)

    def remove(self, worker: Worker) -> bool:
        """Remove a worker; return whether it was there."""
        if worker not in self._free:
            return False
        self._free.remove(worker)
        return True

    async def get(self) -> Worker | None:
        if self._free:
            return self._free.popleft()
        waiter: asyncio.Future[Worker | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.put(waiter.result())
            raise

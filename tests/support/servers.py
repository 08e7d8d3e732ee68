"""Real servers for tests: one in a thread of this process, whose rescorer can be held up or made to fail."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rescorer import Rescorer
from rescorer.lm.base import EdgeScores
from rescorer.service.observability.tracing import Tracing
from rescorer.service.server import Server
from rescorer.service.settings import load_settings
from rescorer.service.workers.model_host import WARM_UP
from rescorer.trie import HypothesisTrie


class Switchable(Rescorer):
    """A real rescorer with switches."""

    fault: Exception | None = None
    """Raised instead of scoring, unless it is only asked whether it works."""
    poison = "poison"
    """A word that no batch survives."""
    broken = False
    """As a device that no longer works."""
    calls = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gate = threading.Event()
        """Scoring waits until it is set."""
        self.gate.set()
        self.entered = threading.Event()

    def edge_scores(self, trie: HypothesisTrie, only: Sequence[str] = ()) -> dict[str, EdgeScores]:
        if self.broken:
            raise RuntimeError("the device is broken")
        self.calls += 1
        if trie is not WARM_UP:
            self.entered.set()
            self.gate.wait(20)
            if self.fault is not None:
                raise self.fault
            if self.poison in trie.words:
                raise RuntimeError("poisoned")
        return super().edge_scores(trie, only)


class RunningServer:
    """A server in an event loop of its own thread."""

    def __init__(
        self, bundle: Path, load: Callable | None = None, tracing: Tracing | None = None, **settings: Any
    ) -> None:
        self.rescorer: Switchable | None = None
        self._load, self._tracing = load or Switchable.load, tracing
        settings = {"port": 0, "threads": 1, "scorers": 0} | settings  # in this process, to be switched
        self.settings = load_settings(bundle=bundle, **settings)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.server = self.run(self._made())
        self.port = self.run(self.server.start())

    @property
    def in_flight(self) -> int:
        """Lists accepted and not yet answered."""
        return self.server.admission.lists.held

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def load(self) -> None:
        self.run(self.server.load())

    def submit(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Any) -> Any:
        return self.submit(coroutine).result(30)

    def close(self) -> None:
        self.run(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _made(self) -> Server:
        def load(folder: Path, device: str, **options: Any) -> Rescorer:
            self.rescorer = self._load(folder, device, **options)
            return self.rescorer

        return Server(self.settings, load, tracing=self._tracing)


@contextmanager
def running(bundle: Path, *, load: bool = True, **settings: Any) -> Iterator[RunningServer]:
    server = RunningServer(bundle, **settings)
    try:
        if load:
            server.load()
        yield server
    finally:
        server.close()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
